use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use bridgehead_call::SystemClock;
use tokio::time::Instant;

use super::*;
use crate::keys::{Key, KeyRing, Lookup, watch};

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

fn rows(keys: &[ApiKey]) -> KeyRows {
    KeyRows { keys: keys.to_vec(), revoked: Vec::new() }
}

fn gone(name: &str, groups: &[&str]) -> RevokedKey {
    RevokedKey {
        name: name.to_owned(),
        groups: groups.iter().map(|&group| group.to_owned()).collect(),
        at: NOW,
    }
}

fn key(name: &str, digest: u8) -> ApiKey {
    ApiKey {
        name: name.to_owned(),
        sha256: [digest; 32],
        groups: Vec::new(),
        scopes: Vec::new(),
        expires: None,
    }
}

fn keys_file() -> (tempfile::TempDir, KeysFile) {
    let folder = tempfile::tempdir().unwrap();
    let file = KeysFile::new(folder.path().join("keys.toml"));
    (folder, file)
}

fn write(file: &KeysFile, text: &str) {
    std::fs::write(file.path(), text).unwrap();
    std::fs::set_permissions(file.path(), Permissions::from_mode(0o600)).unwrap();
}

fn text(file: &KeysFile) -> String {
    std::fs::read_to_string(file.path()).unwrap()
}

fn names(file: &KeysFile) -> Vec<String> {
    let mut names: Vec<String> = file.read().unwrap().unwrap().into_iter().map(|key| key.name).collect();
    names.sort();
    names
}

/// ACC-2 (case 11): a key is appended with all that belongs to it, and only its owner may read the file.
#[test]
fn a_key_is_written_and_read() {
    let (_folder, file) = keys_file();
    assert_eq!(file.read().unwrap(), None);
    let full = ApiKey {
        groups: vec!["build".to_owned(), "a \"b\" \\ ü".to_owned()],
        scopes: vec!["repo:read".to_owned()],
        expires: Some("2027-01-31T12:30:00Z".parse().unwrap()),
        ..key("ci", 1)
    };
    file.append(&full).unwrap();
    file.append(&key("a.b", 2)).unwrap();
    assert!(are_same(&file.rows().unwrap().unwrap(), &rows(&[full, key("a.b", 2)])));
    let about = std::fs::metadata(file.path()).unwrap();
    assert_eq!(about.mode() & 0o777, 0o600);
    assert!(text(&file).starts_with(HEADING), "{}", text(&file));
    assert!(matches!(file.append(&key("a]b", 3)), Err(KeysFileError::Name(_))));
    let error =
        file.append(&ApiKey { groups: vec!["group:x".to_owned()], ..key("c", 3) }).unwrap_err().to_string();
    assert!(error.contains("cannot be written") && error.contains("write `x` alone"), "{error}");
}

/// ACC-2: what people wrote stays, when keys are added and removed.
#[test]
fn other_text_stays() {
    let (_folder, file) = keys_file();
    let one = "11".repeat(32);
    let kept = format!(
        "# ours\n\n# for the build\n[[ci]] # first\nsha256 = \"{one}\"\ngroups = [\n  \"a\",\n]\n\n# next\n"
    );
    write(&file, &kept);
    file.append(&key("ada", 2)).unwrap();
    file.append(&key("ci", 3)).unwrap();
    assert!(text(&file).starts_with(&kept), "{}", text(&file));
    assert_eq!(names(&file), ["ada", "ci", "ci"]);
    assert_eq!(file.remove("ci", Some("0303"), NOW).unwrap(), Removed(vec![key("ci", 3)]));
    assert_eq!(file.remove("ada", None, NOW).unwrap(), Removed(vec![key("ada", 2)]));
    let left = "[[ada]]\nrevoked = 1970-01-01T00:00:00Z";
    assert_eq!(text(&file).trim_end(), format!("{kept}\n{left}"));
    file.append(&key("x", 4)).unwrap();
    file.remove("ci", None, NOW).unwrap();
    assert_eq!(names(&file), ["x"]);
    assert!(text(&file).contains("# for the build") && text(&file).contains("# next"), "{}", text(&file));
}

/// A row goes with its empty line; what belongs to its neighbours stays.
#[test]
fn rows_are_cut_out() {
    #[track_caller]
    fn check(text: &str, expected: &str) {
        assert_eq!(without_rows(text, "b", |_| true), expected);
    }
    check("[[a]]\nx = 1\n\n[[b]]\nx = 2\n\n# of c\n[[c]]\nx = 3\n", "[[a]]\nx = 1\n\n# of c\n[[c]]\nx = 3\n");
    check("[[a]]\nx = 1\n\n[['b']] # old\nx = [\n  1,\n]\n", "[[a]]\nx = 1\n");
    check("[[\"b\"]]\nx = 1\n[[b]]\nx = 2\n", "");
    check("[[ab]]\nx = 1\n# [[b]]\n", "[[ab]]\nx = 1\n# [[b]]\n");
    assert_eq!(without_rows("[[b]]\nx = 1\n", "b", |_| false), "[[b]]\nx = 1\n");
}

/// ACC-2: a revocation that could mean another key is refused, and the error says what there is.
#[test]
fn a_key_is_removed_by_name_and_digest() {
    let (_folder, file) = keys_file();
    let (mut near, mut nearer) = (key("ci", 0xab), key("ci", 0xab));
    (near.sha256[31], nearer.sha256[31]) = (1, 2);
    for key in [&near, &nearer, &key("ada", 7)] {
        file.append(key).unwrap();
    }
    let error = |name: &str, prefix| file.remove(name, prefix, NOW).unwrap_err().to_string();
    assert!(error("eve", None).contains("there is no key `eve`"));
    assert!(error("ci", Some("ff")).contains("abababababab"));
    assert!(error("ci", Some("AB")).contains("write more of it"));
    assert_eq!(
        file.remove("ci", Some(&digest_text(&near.sha256).to_uppercase()), NOW).unwrap(),
        Removed(vec![near])
    );
    file.append(&key("ci", 9)).unwrap();
    assert_eq!(file.remove("ci", None, NOW).unwrap().0.len(), 2, "without a digest, all keys of the name go");
    assert_eq!(names(&file), ["ada"]);
    write(&file, &format!("ada = [{{ sha256 = \"{}\" }}]\n", "07".repeat(32)));
    assert!(error("ada", None).contains("edit it by hand"), "another form is left alone");
    assert_eq!(names(&file), ["ada"]);
}

/// ACC-2: a revoked key leaves its name and its groups, which admit nobody, so that rules with them can still be read; a new key of
/// the name takes their place.
#[test]
fn a_revoked_key_stays_known() {
    let (_folder, file) = keys_file();
    let grouped = |name: &str, digest: u8, groups: &[&str]| ApiKey {
        groups: groups.iter().map(|&group| group.to_owned()).collect(),
        ..key(name, digest)
    };
    let revoked = || file.rows().unwrap().unwrap().revoked;
    for key in
        [grouped("a.b", 1, &["build"]), grouped("a.b", 2, &["build", "ops"]), grouped("ada", 3, &["ops"])]
    {
        file.append(&key).unwrap();
    }
    file.remove("a.b", Some("0101"), NOW).unwrap();
    assert_eq!(
        (names(&file), revoked()),
        (vec!["a.b".to_owned(), "ada".to_owned()], vec![]),
        "all is known still"
    );
    file.remove("a.b", None, NOW).unwrap();
    assert_eq!((names(&file), revoked()), (vec!["ada".to_owned()], vec![gone("a.b", &["build"])]));
    assert!(
        text(&file).ends_with("[[\"a.b\"]]\nrevoked = 1970-01-01T00:00:00Z\ngroups = [\"build\"]\n"),
        "{}",
        text(&file)
    );
    let again = file.remove("a.b", None, NOW).unwrap_err().to_string();
    assert!(again.contains("`a.b` was revoked already, at 1970-01-01T00:00:00Z"), "{again}");

    file.append(&grouped("a.b", 4, &["other"])).unwrap();
    assert_eq!(revoked(), [gone("a.b", &["build"])], "the group would be unknown");
    file.remove("a.b", Some("0404"), NOW).unwrap();
    assert_eq!(revoked(), [gone("a.b", &["build"]), gone("a.b", &["other"])]);
    file.append(&grouped("a.b", 5, &["other", "build"])).unwrap();
    assert_eq!((names(&file), revoked()), (vec!["a.b".to_owned(), "ada".to_owned()], vec![]));
    file.remove("ada", None, NOW).unwrap();
    assert_eq!(revoked(), [gone("ada", &["ops"])]);
    file.append(&grouped("eve", 6, &["ops"])).unwrap();
    assert_eq!(revoked(), [gone("ada", &["ops"])], "another name is another key");
}

/// ACC-8: a change keeps the permissions of the file, so that the group that could read it still can.
#[test]
fn a_group_that_reads() {
    let (_folder, file) = keys_file();
    let file = file.allow_group_read(true);
    file.append(&key("ci", 1)).unwrap();
    std::fs::set_permissions(file.path(), Permissions::from_mode(0o640)).unwrap();
    file.append(&key("ada", 2)).unwrap();
    assert_eq!(names(&file), ["ada", "ci"]);
    assert_eq!(std::fs::metadata(file.path()).unwrap().mode() & 0o777, 0o640);
}

/// ACC-2: a link to the keys file stays a link, and the file keeps its owner.
#[test]
fn a_linked_file() {
    let (folder, link) = keys_file();
    let file = KeysFile::new(folder.path().join("real.toml"));
    file.append(&key("ci", 1)).unwrap();
    std::os::unix::fs::symlink("real.toml", link.path()).unwrap();
    let other = (4711, 4712);
    // Only root may give a file away.
    let is_root = std::os::unix::fs::chown(file.path(), Some(other.0), Some(other.1)).is_ok();
    let before = std::fs::metadata(file.path()).unwrap();
    link.append(&key("ada", 2)).unwrap();
    assert!(std::fs::symlink_metadata(link.path()).unwrap().is_symlink());
    assert_eq!(names(&file), ["ada", "ci"]);
    let after = std::fs::metadata(file.path()).unwrap();
    assert_eq!((after.uid(), after.gid()), (before.uid(), before.gid()));
    assert_eq!(is_root, after.uid() == other.0);
    assert_ne!(after.ino(), before.ino(), "it was replaced");
}

/// ACC-2: a file that others can read or change is refused, and so is one that is not a list of keys.
#[test]
fn a_file_that_cannot_be_used() {
    let (_folder, file) = keys_file();
    file.append(&key("ci", 1)).unwrap();
    for mode in [0o640, 0o604, 0o620, 0o601] {
        std::fs::set_permissions(file.path(), Permissions::from_mode(mode)).unwrap();
        let error = file.read().unwrap_err();
        assert!(matches!(error, KeysFileError::Exposed { mode: told, .. } if told == mode), "{error}");
        let cure = format!("run `chmod 600 {}`", file.path().display());
        assert!(error.to_string().contains(&cure), "{error}");
        // The group may be allowed to read, and nothing more.
        let of_group = file.clone().allow_group_read(true);
        assert_eq!(of_group.read().is_ok(), mode == 0o640, "{mode:o}");
        assert_eq!(error.to_string().contains("allow_group_read"), mode == 0o640, "{error}");
    }
    write(&file, "[[ci]\n");
    let error = file.read().unwrap_err().to_string();
    assert!(error.contains("keys.toml:1:"), "{error}");
    assert!(matches!(file.append(&key("a", 2)), Err(KeysFileError::Wrong(_))));
    assert_eq!(text(&file), "[[ci]\n", "a wrong file is not changed");
    let sparse = File::options().write(true).open(file.path()).unwrap();
    sparse.set_len(LARGEST + 1).unwrap();
    assert!(matches!(file.read(), Err(KeysFileError::Unusable { .. })), "a large file is not read");
    std::fs::remove_file(file.path()).unwrap();
    std::fs::create_dir(file.path()).unwrap();
    assert!(matches!(file.read(), Err(KeysFileError::Unusable { .. })));
}

/// ACC-2: an edit by a person while a key is made is kept, and so is the key.
#[test]
fn an_edit_meanwhile_is_kept() {
    let (_folder, file) = keys_file();
    file.append(&key("ci", 1)).unwrap();
    let mut edits = 0;
    let done = file.change(|before| {
        edits += 1;
        if edits == 1 {
            write(&file, &format!("{before}\n# an edit\n"));
        }
        Ok((format!("{before}\n{}", row(&key("ada", 2))), ()))
    });
    done.unwrap();
    assert_eq!((edits, names(&file)), (2, vec!["ada".to_owned(), "ci".to_owned()]));
    assert!(text(&file).contains("# an edit"), "{}", text(&file));
    let error = file.change(|before| {
        write(&file, &format!("{before}#"));
        Ok((before.to_owned(), ()))
    });
    assert!(error.unwrap_err().to_string().contains("try again"));
    let left = std::fs::read_dir(file.folder()).unwrap().count();
    assert_eq!(left, 2, "the file and its lock");
}

/// ACC-2: keys that several programs make at the same time are all kept.
#[test]
fn keys_are_made_at_once() {
    let (_folder, file) = keys_file();
    std::thread::scope(|scope| {
        for maker in 0..4 {
            let file = &file;
            scope.spawn(move || {
                for number in 0..10 {
                    let digest = Key::generate().unwrap().digest();
                    file.append(&ApiKey { sha256: digest, ..key(&format!("k{maker}-{number}"), 0) }).unwrap();
                }
            });
        }
    });
    assert_eq!(file.read().unwrap().unwrap().len(), 40);
}

/// ACC-2 (case 11): the watched file changes the known keys within a second, through renames and edits in place; a wrong file
/// changes nothing.
#[tokio::test(start_paused = true)]
async fn a_watched_file() {
    let (_folder, file) = keys_file();
    let clock = std::sync::Arc::new(SystemClock::new());
    let now = Timestamp::now();
    let ring = std::sync::Arc::new(KeyRing::new(Vec::new(), now));
    let watching = tokio::spawn(watch(Some(file.clone()), std::sync::Arc::clone(&ring), clock));
    let until = async |what: &str, done: &dyn Fn() -> bool| {
        let began = Instant::now();
        while !done() {
            assert!(began.elapsed() < Duration::from_secs(5), "{what}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        began.elapsed()
    };
    let find = |digest: u8| ring.find(&[digest; 32], now);
    let is_valid = |digest: u8| matches!(find(digest), Lookup::Valid(_));

    file.append(&key("ci", 1)).unwrap();
    until("a new file is read", &|| is_valid(1)).await;
    file.append(&key("ada", 2)).unwrap();
    until("a key is added", &|| is_valid(2)).await;
    let Lookup::Valid(ada) = find(2) else { panic!("it is valid") };
    write(&file, "[[broken");
    tokio::time::sleep(Duration::from_millis(1000)).await;
    assert!(is_valid(1) && is_valid(2), "a wrong file changes nothing");
    write(&file, &row(&key("ci", 1)));
    let took = until("a key is removed in place", &|| !is_valid(2)).await;
    assert!(took < Duration::from_secs(1), "{took:?}");
    assert!(is_valid(1) && ada.validity().has_ended());
    std::fs::remove_file(file.path()).unwrap();
    until("a removed file has no keys", &|| !is_valid(1)).await;
    assert!(ring.is_used());
    watching.abort();
}
