//! The requests of one client that have not been answered yet, by id.
//!
//! An id is in the table from [`InFlight::enter`] until its [`Entry`] is finished, cancelled or dropped, on
//! every path. Meanwhile a second request with the same id is refused.

use std::collections::{HashMap, hash_map};
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use bridgehead_wire::{Id, RpcError, code};
use futures_util::future::{AbortHandle, AbortRegistration, Abortable};
use parking_lot::Mutex;

/// The table; clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct InFlight(Arc<Mutex<Table>>);

#[derive(Debug, Default)]
struct Table {
    next: u64,
    running: HashMap<Id, (u64, AbortHandle)>,
}

impl InFlight {
    /// Takes `id`, unless a request with it is still running. What runs under the registration stops
    /// when the request is cancelled.
    pub(crate) fn enter(&self, id: &Id) -> Result<(Entry, AbortRegistration), RpcError> {
        let mut table = self.0.lock();
        let Table { next, running } = &mut *table;
        let hash_map::Entry::Vacant(place) = running.entry(id.clone()) else {
            return Err(RpcError::new(
                code::INVALID_REQUEST,
                "a request with this id is still being answered; use another id",
            ));
        };
        let serial = *next;
        *next += 1;
        let (handle, registration) = AbortHandle::new_pair();
        place.insert((serial, handle));
        Ok((Entry { table: self.clone(), id: id.clone(), serial, left: false }, registration))
    }

    /// Stops the request `id`; returns whether there was one. The id is free at once.
    pub(crate) fn cancel(&self, id: &Id) -> bool {
        let taken = self.0.lock().running.remove(id);
        taken.inspect(|(_, handle)| handle.abort()).is_some()
    }

    /// Stops every request.
    pub(crate) fn cancel_all(&self) {
        let taken = std::mem::take(&mut self.0.lock().running);
        taken.values().for_each(|(_, handle)| handle.abort());
    }

    /// How many are running.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.lock().running.len()
    }

    fn leave(&self, id: &Id, serial: u64) -> bool {
        let running = &mut self.0.lock().running;
        match running.remove(id) {
            Some((found, _)) if found == serial => true,
            // This request was cancelled, and a newer one has the id now.
            Some(other) => {
                running.insert(id.clone(), other);
                false
            }
            None => false,
        }
    }
}

/// Runs `work` until it is done or its request is cancelled. The work always begins, so that a call that is
/// cancelled immediately still leaves its record. The caller pins it: passed by value, the work would take up
/// room in this future twice.
pub(crate) async fn until_cancelled<T>(
    mut work: Pin<&mut impl Future<Output = T>>,
    registration: AbortRegistration,
) -> Option<T> {
    let mut cancelled = pin!(Abortable::new(std::future::pending::<()>(), registration));
    poll_fn(|context| match work.as_mut().poll(context) {
        Poll::Ready(outcome) => Poll::Ready(Some(outcome)),
        Poll::Pending => cancelled.as_mut().poll(context).map(|_| None),
    })
    .await
}

/// One running request's place in the table.
#[derive(Debug)]
pub(crate) struct Entry {
    table: InFlight,
    id: Id,
    serial: u64,
    /// Whether it has freed the id.
    left: bool,
}

impl Entry {
    /// Frees the id and returns whether the answer is still wanted. Must be called before the answer is
    /// written: a client that has read the answer may use the id again.
    pub(crate) fn finish(mut self) -> bool {
        self.left = true;
        self.table.leave(&self.id, self.serial)
    }

    /// The request's id.
    pub(crate) const fn id(&self) -> &Id {
        &self.id
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if !self.left {
            self.table.leave(&self.id, self.serial);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bridgehead_wire::Raw;

    /// PIPE-7: a request that is cancelled before its first poll still begins, so that it is recorded.
    #[tokio::test]
    async fn work_begins_even_if_it_was_cancelled_already() {
        let table = InFlight::default();
        let (_entry, registration) = table.enter(&1.into()).unwrap();
        assert!(table.cancel(&1.into()));
        let mut began = false;
        let work = async {
            began = true;
            std::future::pending::<()>().await;
        };
        assert_eq!(until_cancelled(pin!(work), registration).await, None);
        assert!(began);
    }

    #[test]
    fn an_id_is_refused_while_it_runs_and_freed_on_every_path() {
        let table = InFlight::default();
        let id = Id::from(1);
        let (entry, _) = table.enter(&id).unwrap();
        assert_eq!(table.enter(&id).unwrap_err().code(), code::INVALID_REQUEST);
        assert!(table.enter(&Id::new(Raw::string("1")).unwrap()).is_ok(), "a string is another id");
        assert!(entry.finish());
        let (entry, _) = table.enter(&id).unwrap();
        drop(entry);
        assert_eq!(table.len(), 0);
    }

    #[test]
    fn a_cancelled_id_is_free_at_once_and_its_answer_unwanted() {
        let table = InFlight::default();
        let id = Id::from(1);
        let (first, _registration) = table.enter(&id).unwrap();
        assert!(table.cancel(&id));
        assert!(!table.cancel(&id));
        let (second, _registration) = table.enter(&id).unwrap();
        assert!(!first.finish(), "the first is gone and must not free the second");
        assert!(second.finish());
    }
}
