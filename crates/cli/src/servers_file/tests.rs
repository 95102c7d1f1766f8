use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;

use super::*;

const TOKEN: &str = "ghp_0123456789abcdefghijABCDEFGHIJ012345";

/// A user with a home folder of its own.
struct Home {
    folder: tempfile::TempDir,
    world: World,
}

impl Home {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_str().unwrap().to_owned();
        let variables = BTreeMap::from([("HOME".to_owned(), path)]);
        let world = World::of(variables, folder.path().to_owned()).unwrap();
        Self { folder, world }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    fn mode(&self, name: &str) -> u32 {
        fs::metadata(self.path(name)).unwrap().mode() & 0o777
    }

    fn open(&self, name: &str) -> Result<ServersFile, ServersFileError> {
        ServersFile::open(Path::new(name), &self.world)
    }
}

fn program(env: &[(&str, &str)]) -> ServerEntry {
    let launch = EntryLaunch::Program { command: "x".to_owned(), args: Vec::new(), cwd: None };
    let pairs = env.iter().map(|(name, value)| (name.to_string(), Secret::new(*value)));
    ServerEntry { env: pairs.collect(), ..ServerEntry::new(launch) }
}

fn remote(url: &str, headers: &[(&str, &str)]) -> ServerEntry {
    let launch = EntryLaunch::Remote { url: url.to_owned(), transport: None };
    let pairs = headers.iter().map(|(name, value)| (name.to_string(), Secret::new(*value)));
    ServerEntry { headers: pairs.collect(), ..ServerEntry::new(launch) }
}

/// JOIN-3: secrets go to a file that only its owner may read, the configuration refers to them, and the loader finds them.
#[test]
fn secrets_are_placed() {
    let home = Home::new();
    let mut file = home.open("bridgehead.toml").unwrap();
    let put = file.put("github", &program(&[("GITHUB_TOKEN", TOKEN), ("LEVEL", "debug")])).unwrap();
    let placed = |key: &str, variable: &str| Placed { key: key.to_owned(), variable: variable.to_owned() };
    assert_eq!(put.placed, [placed("env.GITHUB_TOKEN", "GITHUB_TOKEN")]);
    let put = file
        .put("my-api", &remote("https://h/mcp?api_key=abc", &[("Authorization", "Bearer hunter2")]))
        .unwrap();
    assert_eq!(
        put.placed,
        [placed("headers.Authorization", "MY_API_AUTHORIZATION"), placed("url", "MY_API_URL")]
    );
    assert!(!home.path("bridgehead.toml").exists(), "nothing is written before it is saved");
    let saved = file.save(&home.world).unwrap();
    assert_eq!((saved.is_new, saved.secrets), (true, Some(home.path("bridgehead.env"))));
    let text = home.text("bridgehead.toml");
    assert!(!text.contains(TOKEN) && !text.contains("hunter2") && !text.contains("abc"), "{text}");
    assert_eq!(home.mode("bridgehead.env"), 0o600);
    let config = load_text(
        &home.path("bridgehead.toml"),
        text.into_bytes(),
        &home.world.environment,
        home.folder.path(),
    );
    let config = config.unwrap();
    assert!(config.warnings.is_empty(), "{:?}", config.warnings);
    match [&config.servers[0].launch, &config.servers[1].launch] {
        [bridgehead::config::Launch::Stdio(stdio), bridgehead::config::Launch::Remote(remote)] => {
            assert_eq!(stdio.env["GITHUB_TOKEN"].expose(), TOKEN);
            assert_eq!(stdio.env["LEVEL"].expose(), "debug");
            assert_eq!(remote.headers["Authorization"].expose(), "Bearer hunter2");
            assert_eq!(remote.url.target(), "/mcp?api_key=abc");
        }
        other => panic!("{other:?}"),
    }
}

/// JOIN-3: two servers with the same variable have two values; a reference of another server keeps its meaning.
#[test]
fn names_of_variables() {
    let home = Home::new();
    fs::write(home.path("a.toml"), "[servers.other]\ncommand = 'x'\nenv = { T = '${GITHUB_TOKEN}' }\n")
        .unwrap();
    let mut file = home.open("a.toml").unwrap();
    let variable = |put: &Put| put.placed[0].variable.clone();
    assert_eq!(
        variable(&file.put("github", &program(&[("GITHUB_TOKEN", "one")])).unwrap()),
        "GITHUB_TOKEN_2"
    );
    assert_eq!(variable(&file.put("a", &program(&[("B_TOKEN", "two")])).unwrap()), "A_B_TOKEN");
    assert_eq!(variable(&file.put("a_b", &program(&[("TOKEN", "three")])).unwrap()), "A_B_TOKEN_2");
    assert_eq!(
        variable(&file.put("a-b", &program(&[("TOKEN", "two")])).unwrap()),
        "A_B_TOKEN",
        "the same value"
    );
    assert_eq!(variable(&file.put("1", &program(&[("TOKEN", "x")])).unwrap()), "_1_TOKEN");
    // The same server again keeps its variable.
    let again = file.put("a_b", &program(&[("TOKEN", "four")])).unwrap();
    assert_eq!((variable(&again), again.replaced), ("A_B_TOKEN_2".to_owned(), true));
    file.save(&home.world).unwrap();
    let env = home.text("a.env");
    assert!(env.contains("A_B_TOKEN_2=four\n") && env.contains("GITHUB_TOKEN_2=one\n"), "{env}");
}

/// JOIN-3: a removed server takes the variables with it that nobody else refers to.
#[test]
fn a_removed_server_takes_its_secrets() {
    let home = Home::new();
    let mut file = home.open("a.toml").unwrap();
    file.put("one", &program(&[("TOKEN", "same")])).unwrap();
    file.put("two", &program(&[("TOKEN", "other"), ("ONE_TOKEN", "${ONE_TOKEN}")])).unwrap();
    file.save(&home.world).unwrap();
    drop(file);
    fs::write(home.path("a.env"), home.text("a.env") + "MINE=1\n").unwrap();
    let ((), saved) = edit(Path::new("a.toml"), &home.world, |file| file.remove("two")).unwrap();
    assert_eq!((saved.secrets, saved.forgotten), (Some(home.path("a.env")), vec!["TWO_TOKEN".to_owned()]));
    assert!(!home.text("a.env").contains("TWO_TOKEN") && home.text("a.env").contains("ONE_TOKEN=same"));
    edit(Path::new("a.toml"), &home.world, |file| file.remove("one")).unwrap();
    let env = home.text("a.env");
    assert!(!env.contains("TOKEN=") && env.contains("MINE=1\n"), "{env}");
}

/// JOIN-3: a variable that somebody wrote by hand, or that another configuration in the folder refers to, stays when a server is
/// removed.
#[test]
fn a_removed_server_leaves_what_is_not_its_own() {
    let home = Home::new();
    let shared = "[secrets]\nenv_file = 'shared.env'\n";
    let server = "[servers.a]\ncommand = 'x'\nenv = { T = '${MY_TOKEN}', TOKEN = '${A_TOKEN}', KEY = '${A_KEY_2}', I = '${A_TOKEN_X}', E = '${A_E_}' }\n";
    fs::write(home.path("one.toml"), format!("{shared}{server}")).unwrap();
    fs::write(
        home.path("two.toml"),
        format!("{shared}[servers.b]\ncommand = 'x'\nenv = {{ T = '${{A_TOKEN}}' }}\n"),
    )
    .unwrap();
    let env = "MY_TOKEN=1\nA_TOKEN=2\nA_KEY_2=3\nA_TOKEN_X=4\nA_KEY=5\nA_E_=6\n";
    fs::write(home.path("shared.env"), env).unwrap();
    fs::write(home.path("notes.txt"), "${A_KEY_2}").unwrap();
    fs::set_permissions(home.path("shared.env"), fs::Permissions::from_mode(0o600)).unwrap();
    let ((), saved) = edit(Path::new("one.toml"), &home.world, |file| file.remove("a")).unwrap();
    assert_eq!(saved.forgotten, ["A_KEY_2"]);
    assert_eq!(home.text("shared.env"), env.replace("A_KEY_2=3\n", ""));
    fs::remove_file(home.path("two.toml")).unwrap();
    fs::write(home.path("one.toml"), format!("{shared}{server}")).unwrap();
    let ((), saved) = edit(Path::new("one.toml"), &home.world, |file| file.remove("a")).unwrap();
    assert_eq!(saved.forgotten, ["A_TOKEN"]);
}

/// JOIN-3: a secret that cannot be moved makes the configuration private; other edits leave its permissions.
#[test]
fn secrets_that_stay() {
    let home = Home::new();
    let file = home.path("a.toml");
    fs::write(&file, "[servers.a]\ncommand = 'x'\n").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let (_, saved) = edit(&file, &home.world, |file| file.put("b", &program(&[("A", "1")]))).unwrap();
    assert_eq!((saved.narrowed, saved.secrets, home.mode("a.toml")), (false, None, 0o644));
    let mut entry = program(&[("PASSWORD", "${USER}hunter2")]);
    entry.launch =
        EntryLaunch::Program { command: "x".to_owned(), args: vec!["--token=abc".to_owned()], cwd: None };
    let (put, saved) = edit(&file, &home.world, |file| file.put("c", &entry)).unwrap();
    assert_eq!((put.placed.len(), put.exposed), (0, vec!["env.PASSWORD".to_owned(), "args".to_owned()]));
    assert_eq!((saved.narrowed, home.mode("a.toml")), (true, 0o600));
}

/// JOIN-3: a file that is wrong is not edited, and one that would be wrong is not written.
#[test]
fn wrong_files_stay() {
    let home = Home::new();
    for (text, expected) in [
        ("[servers.a]\ncommand = 'x'\ncommand = 'y'\n", "duplicate key"),
        ("[servers.a]\ncommand = 'x'\n[servers.a]\nurl = 'y'\n", "duplicate key"),
        ("[servers.a]\ncomand = 'x'\n", "unknown key"),
        ("\u{feff}[servers.a\n", "not valid TOML"),
    ] {
        fs::write(home.path("a.toml"), text).unwrap();
        let error = home.open("a.toml").unwrap_err();
        let ServersFileError::Wrong(told) = &error else { panic!("{error:?}") };
        assert!(told.to_string().contains(expected), "{expected}: {told}");
        assert_eq!(home.text("a.toml"), text);
    }
    let before = "[[policy]]\nwho = ['*']\ntools = ['a/x']\n\n[servers.a]\ncommand = 'x'\n";
    fs::write(home.path("a.toml"), before).unwrap();
    let error =
        edit(Path::new("a.toml"), &home.world, |file| file.put("bridgehead", &program(&[]))).unwrap_err();
    assert!(matches!(error, ServersFileError::Refused(_)), "{error:?}");
    assert_eq!(home.text("a.toml"), before);
    fs::write(home.path("x.json"), "{}").unwrap();
    assert!(matches!(home.open("x.json"), Err(ServersFileError::OfAClient { .. })));
    fs::write(home.path("a.toml"), "[secrets]\nenv_file = 'a.env'\n").unwrap();
    fs::write(home.path("a.env"), "A=1\nhunter2\n").unwrap();
    let told = home.open("a.toml").unwrap_err().to_string();
    assert!(told.contains("line 2 is not") && !told.contains("hunter2"), "{told}");
}

/// JOIN-3: byte order mark, line ends and tabs stay.
#[test]
fn marks_and_line_ends_stay() {
    let home = Home::new();
    let before = "\u{feff}# mine\r\n[servers.a]\r\n\tcommand = 'x'\t# c\r\n";
    fs::write(home.path("a.toml"), before).unwrap();
    edit(Path::new("a.toml"), &home.world, |file| file.put("b", &program(&[("API_KEY", "1")]))).unwrap();
    let after = home.text("a.toml");
    let added = "\r\n[secrets]\r\nenv_file = \"a.env\"\r\n\r\n[servers.b]\r\ncommand = \"x\"\r\n\
                 env = { API_KEY = \"${B_API_KEY}\" }\r\n";
    assert_eq!(after, format!("{before}{added}"));
    edit(Path::new("a.toml"), &home.world, |file| file.remove("b")).unwrap();
    assert!(home.text("a.toml").starts_with(before));
}

/// JOIN-3: an edit starts again if somebody else changes the file meanwhile, and loses neither.
#[test]
fn a_change_meanwhile() {
    let home = Home::new();
    let mut rounds = 0;
    edit(Path::new("a.toml"), &home.world, |file| {
        rounds += 1;
        if rounds == 1 {
            fs::write(home.path("a.toml"), "[servers.theirs]\ncommand = 'y'\n").unwrap();
        }
        file.put("ours", &program(&[("TOKEN", "t")]))
    })
    .unwrap();
    assert_eq!(
        (rounds, home.open("a.toml").unwrap().names()),
        (2, vec!["theirs".to_owned(), "ours".to_owned()])
    );
    assert!(home.text("a.env").contains("OURS_TOKEN=t"));
}

/// JOIN-6: an edit by a verb renews the agreement to a file that the user agreed to, and to no other.
#[test]
fn trust_is_renewed() {
    let home = Home::new();
    let file = home.path("bridgehead.toml");
    let trusted = || home.world.trust().answer(&file, &fs::read(&file).unwrap());
    edit(&file, &home.world, |file| file.put("a", &program(&[]))).unwrap();
    assert_eq!(trusted(), Some(true), "nobody else wrote a new file");
    edit(&file, &home.world, |file| file.turn("a", false)).unwrap();
    assert_eq!(trusted(), Some(true));
    fs::write(&file, "[servers.theirs]\ncommand = 'x'\n").unwrap();
    let (_, saved) = edit(&file, &home.world, |file| file.turn("theirs", false)).unwrap();
    assert_eq!((trusted(), saved.needs_agreement), (None, true));
}

/// JOIN-6: what somebody else wrote is not agreed to when it is put into a file, be the file new or agreed to before. The user's
/// own file needs no agreement.
#[test]
fn what_others_wrote_is_not_trusted() {
    let home = Home::new();
    let put = |path: &Path, name: &str, by_others: bool| {
        let saved = edit(path, &home.world, |file| {
            if by_others {
                file.written_by_others();
            }
            file.put(name, &program(&[]))
        });
        let said = home.world.trust().answer(path, &fs::read(path).unwrap());
        (said, saved.unwrap().1.needs_agreement)
    };
    let file = home.path("bridgehead.toml");
    assert_eq!(put(&file, "theirs", true), (None, true));
    let other = home.path("other.toml");
    assert_eq!(put(&other, "mine", false), (Some(true), false));
    assert_eq!(put(&other, "theirs", true), (None, true));
    let own = user_file(&home.world.environment).unwrap();
    assert_eq!(put(&own, "theirs", true), (None, false));
    assert_eq!(put(&own, "mine", false), (None, false));
}

/// JOIN-3: an entry comes back as it was written.
#[test]
fn entries_are_read_again() {
    let home = Home::new();
    let mut entry = program(&[("A", "1"), ("B", "two words")]);
    entry.launch = EntryLaunch::Program {
        command: "npx".to_owned(),
        args: vec!["-y".to_owned(), "a \"b\"".to_owned()],
        cwd: Some("/tmp".to_owned()),
    };
    entry.env_file = Some("x.env".to_owned());
    entry.disabled = Some("no equal".to_owned());
    entry.tools_allowed = Some(vec!["a*".to_owned()]);
    entry.tools_denied = vec!["b".to_owned()];
    entry.timeout = Some(std::time::Duration::from_secs(7));
    let mut file = home.open("a.toml").unwrap();
    file.put("a", &entry).unwrap();
    let mut far = remote("https://h/mcp", &[("X-A", "1")]);
    far.launch =
        EntryLaunch::Remote { url: "https://h/mcp".to_owned(), transport: Some(EntryTransport::Sse) };
    file.put("b", &far).unwrap();
    let long: Vec<(String, Secret)> =
        (0..9).map(|number| (format!("VARIABLE_{number}"), Secret::new("value"))).collect();
    let many = ServerEntry { env: long, ..program(&[]) };
    file.put("c", &many).unwrap();
    file.save(&home.world).unwrap();
    let file = ServersFile::read(Path::new("a.toml"), &home.world).unwrap();
    assert_eq!((file.get("a"), file.get("b"), file.get("c")), (Some(entry), Some(far), Some(many)));
    assert_eq!(file.get("d"), None);
    let camel = "[servers.a]\ncommand = 'x'\ntoolsDenied = ['z']\nrequestTimeoutMs = 5\n";
    fs::write(home.path("b.toml"), camel).unwrap();
    let read = ServersFile::read(Path::new("b.toml"), &home.world).unwrap().get("a").unwrap();
    assert_eq!((read.tools_denied.len(), read.timeout), (1, Some(std::time::Duration::from_millis(5))));
}

/// WALL-7: a link in a folder does not decide which file is changed; the user's own file may be a link.
#[test]
fn a_folder_does_not_choose_what_is_written() {
    let home = Home::new();
    let own = home.path(".config/bridgehead");
    fs::create_dir_all(&own).unwrap();
    fs::write(own.join("bridgehead.toml"), "").unwrap();
    fs::write(home.path(".profile"), "").unwrap();
    let project = home.path("project");
    fs::create_dir_all(project.join("config")).unwrap();
    let link = |to: &str, name: &str| std::os::unix::fs::symlink(to, project.join(name)).unwrap();
    let refused = |what: &str| {
        let error = home.open("project/bridgehead.toml").unwrap_err();
        assert!(matches!(error, ServersFileError::Elsewhere { .. }), "{what}: {error}");
        assert!(error.to_string().contains("edit that file itself"), "{error}");
        fs::remove_file(project.join("bridgehead.toml")).unwrap();
    };
    link("../.config/bridgehead/bridgehead.toml", "bridgehead.toml");
    refused("a link to the user's own file");
    link("../new.toml", "bridgehead.toml");
    refused("a link to a file that does not exist yet");
    link("../.profile", "bridgehead.env");
    fs::write(project.join("bridgehead.toml"), "[secrets]\nenv_file = \"bridgehead.env\"\n").unwrap();
    fs::set_permissions(home.path(".profile"), fs::Permissions::from_mode(0o600)).unwrap();
    refused("a link of the variables");
    fs::write(project.join("bridgehead.toml"), "[secrets]\nenv_file = \"../.profile\"\n").unwrap();
    refused("variables elsewhere");
    fs::write(project.join("config/real.toml"), "").unwrap();
    link("config/real.toml", "bridgehead.toml");
    home.open("project/bridgehead.toml").unwrap();

    fs::write(home.path("dotfile.toml"), "").unwrap();
    fs::remove_file(own.join("bridgehead.toml")).unwrap();
    std::os::unix::fs::symlink(home.path("dotfile.toml"), own.join("bridgehead.toml")).unwrap();
    home.open(".config/bridgehead/bridgehead.toml").unwrap();
}
