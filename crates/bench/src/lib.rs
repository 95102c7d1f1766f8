//! Measures what the gateway costs: puts the same load on a minimal server directly and through the gateway.
//!
//! The programs are `echo-upstream` and `echo-stdio` ([`echo`], served by [`serve`]) and `bench`, which starts everything,
//! generates the load ([`load`]) and prints the [`report`]. Every answer is checked before it is counted, so that an error
//! never looks like speed. `docs/performance.md` describes the method.

pub mod arguments;
pub mod client;
pub mod count;
pub mod echo;
pub mod ending;
pub mod family;
pub mod isolation;
pub mod load;
pub mod machine;
pub mod plan;
pub mod principals;
pub mod record;
pub mod report;
pub mod request;
pub mod serve;
pub mod soak;
pub mod statistics;
pub mod supervision;
mod tools;
