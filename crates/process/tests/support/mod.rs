//! What the tests of this crate share.

/// Says that a test could not show what it is for, because the machine lacks something. `cargo xtask cases` counts these.
#[expect(clippy::print_stdout, reason = "for whoever reads the output of a test")]
pub(crate) fn not_shown(test: &str, lacking: &str) {
    println!("NOT SHOWN {test}: {lacking}");
    if let Some(folder) = std::env::var_os("BRIDGEHEAD_NOT_SHOWN") {
        let note = std::path::Path::new(&folder).join(test);
        // Another user may have said it already.
        if !note.exists() {
            std::fs::write(note, lacking).unwrap();
        }
    }
}
