//! What a user sees after a mistake in `[auth]`, a rule, a limit or a listener.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed assumption is a failed test"
)]

mod common;

use bridgehead_config::{Config, load};
use common::{environment, refused, toml};
use insta::assert_snapshot;

const DIGEST: &str = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae";

#[track_caller]
fn config(text: &str) -> Config {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("bridgehead.toml"), text).unwrap();
    let read = load(Some("bridgehead.toml".as_ref()), &environment(), folder.path());
    read.unwrap_or_else(|error| panic!("{error}"))
}

/// One mistake: its message and, of the label and the cure, what they must contain.
#[track_caller]
fn check(text: &str, message: &str, contains: &str) {
    let error = refused("bridgehead.toml", text);
    let told = error.to_string();
    assert_eq!(error.0.len(), 1, "one mistake, one message: {told}");
    assert_eq!(error.0[0].message, message);
    assert!(told.contains(contains), "{contains:?} is missing: {told}");
}

/// ACC-1: mistakes in `[auth]`.
#[test]
fn mistakes_in_auth() {
    check(
        "[[limits]]\nwho = ['*']\nrate = '60/min'\n",
        "`limits` must be a table, found a list",
        "`[[limits.rules]]`",
    );
    let url = "`public_url` cannot be used";
    check("[auth]\npublic_url = 'mcp.example.com'\n", url, "https://mcp.example.com/mcp");
    check("[auth]\npublic_url = 'http://mcp.example.com'\n", url, "without `https`");
    check("[auth]\npublic_url = 'wss://mcp.example.com'\n", url, "`https://`");
    check("[auth]\npublic_url = 'https://h/mcp/'\n", url, "write `https://h/mcp`");
    check("[auth]\npublic_url = 'https://h/mcp?a=b'\n", url, "leave out");
    check(
        "[auth]\nlegacy_discovery = true\n",
        "`legacy_discovery` has no issuer whose metadata it could serve",
        "[auth.issuers.NAME]",
    );
    check(
        "[auth]\nstep_up = 'inband'\n",
        "`step_up` must be one of `\"http\"`, `\"in-band\"`, found `\"inband\"`",
        "did you mean `\"in-band\"`",
    );
    check("[auth]\nkeys_file = ''\n", "`keys_file` is empty", "name a path");
    check("[auth]\noperators = ['key:ci']\n", "`operators`: there is no key `ci`", "bridgehead key new ci");
    check(
        "[auth]\noperators_read = ['grup:x']\n",
        "`operators_read`: `grup:x` names nobody",
        "did you mean `group:x`",
    );

    let digest = "the `sha256` of key `ci` is not a SHA-256 in hexadecimal";
    check("[[auth.keys.ci]]\nsha256 = 'abc'\n", digest, "64 digits");
    check("[[auth.keys.ci]]\nsha256 = 'bhk_abc'\n", digest, "it is a key itself");
    check("[[auth.keys.ci]]\ngroups = ['a']\n", "key `ci` has no `sha256`", "bridgehead key new ci");
    check(
        &format!("[auth.keys.ci]\nsha256 = '{DIGEST}'\n"),
        "`keys` must be a table of lists of tables, each under `[[auth.keys.NAME]]`, found a table",
        "[[auth.keys.NAME]]",
    );
    check(
        &format!("[[auth.keys.'a b']]\nsha256 = '{DIGEST}'\n"),
        "`a b` cannot be the name of a key",
        "1 to 64 letters",
    );
    check(
        &format!("[[auth.keys.a]]\nsha256 = '{DIGEST}'\n[[auth.keys.b]]\nsha256 = '{DIGEST}'\n"),
        "key `b` has the same `sha256` as a key of `a`",
        "keep one",
    );
    let key = |line: &str| format!("[[auth.keys.ci]]\nsha256 = '{DIGEST}'\n{line}\n");
    check(&key("expires = '90d'"), "`expires` is not a time or a date", "2027-01-31");
    check(&key("expires = 2027-01-31T10:00:00"), "`expires` is not a time or a date", "offset");
    check(&key("groups = ['']"), "an entry of `groups` is not the name of a group", "spaces");
    check(&key("groups = ['group:a']"), "an entry of `groups` begins with `group:`", "write `a` alone");
    check(&key("scopes = ['a b']"), "an entry of `scopes` is not a scope", "several entries");

    let proxy = |lines: &str| format!("[auth.proxy]\n{lines}\n");
    let empty = "`proxies` names no proxy, so everybody or nobody would be believed";
    check(&proxy("proxies = []\nuser_header = 'X-User'"), empty, "10.0.0.7");
    check(&proxy("user_header = 'X-User'"), empty, "10.0.0.7");
    check(
        &proxy("proxies = ['10.0.0.0/33']\nuser_header = 'X-User'"),
        "an entry of `proxies` is not an address or a network",
        "10.0.0.0/8",
    );
    check(
        &proxy("proxies = ['proxy.local']\nuser_header = 'X-User'"),
        "an entry of `proxies` is not an address or a network",
        "fd00::/8",
    );
    check(
        &proxy("proxies = ['0.0.0.0/0']\nuser_header = 'X-User'"),
        "`0.0.0.0/0` in `proxies` is every address",
        "anybody",
    );
    check(
        &proxy("proxies = ['10.0.0.7']\ngroups_header = 'X-Groups'"),
        "`groups_header` has no effect without `user_header`",
        "remove `groups_header`",
    );
    check(
        &proxy("proxies = ['10.0.0.7']\nuser_header = ''"),
        "`user_header` is not the name of a header",
        "letters",
    );
    check(
        "[auth.proxy]\nproxies = ['10.0.0.7']\n[[policy]]\nwho = ['proxy:bob']\ntools = ['*/*']\n",
        "`who`: no proxy could name `bob`",
        "`user_header`",
    );
    check(
        &proxy("proxies = ['10.0.0.7']\nuser_header = 'Authorization'"),
        "`user_header` cannot be `Authorization`, which clients set themselves",
        "X-Forwarded-User",
    );
    check(
        &proxy("proxies = ['10.0.0.7']\nuser_header = 'X User'"),
        "`user_header` is not the name of a header",
        "letters",
    );
    check(
        &proxy("proxies = ['10.0.0.7']\nuser_header = 'X-User'\ngroups_header = 'x-user'"),
        "`user_header` and `groups_header` are the same header",
        "one header for each",
    );
}

/// ACC-1: mistakes in an issuer.
#[test]
fn mistakes_in_issuers() {
    let issuer = |lines: &str| {
        format!("[auth.issuers.corp]\nissuer = 'https://id.example.com'\naudiences = ['a']\n{lines}\n")
    };
    check("[auth.issuers.corp]\naudiences = ['a']\n", "`issuer` is missing", "write `issuer`");
    check(
        "[auth.issuers.corp]\nissuer = 'http://id.example.com'\naudiences = ['a']\n",
        "`issuer` is not the identifier of an issuer: only an address of this machine may do without `https`",
        "exactly as tokens have it",
    );
    check(
        "[auth.issuers.corp]\nissuer = 'https://id.example.com?x'\naudiences = ['a']\n",
        "`issuer` is not the identifier of an issuer: it has a query or a fragment",
        "exactly",
    );
    check(
        "[auth.issuers.corp]\nissuer = 'https://id.example.com'\n",
        "issuer `corp` has no audience, so no token of it could be accepted",
        "public_url",
    );
    check(
        &format!("{}[auth.issuers.two]\nissuer = 'https://id.example.com'\naudiences = ['a']\n", issuer("")),
        "issuers `corp` and `two` have the same identifier",
        "keep one",
    );
    check(
        "[auth.issuers.'a/b']\nissuer = 'https://id.example.com'\naudiences = ['a']\n",
        "`a/b` cannot be the name of an issuer",
        "1 to 64",
    );
    check(
        "[auth.issuers.corp]\nissuer = 'https://id.example.com'\naudiences = []\n",
        "`audiences` is empty",
        "write a value",
    );
    check(
        &issuer("algorithms = ['ES265']"),
        "`algorithms`: `ES265` is not accepted",
        "did you mean `ES256`?",
    );
    check(
        &issuer("algorithms = ['HS256']"),
        "`algorithms`: `HS256` is not accepted",
        "use `RS256`, `PS256`, `ES256`, `EdDSA`",
    );
    check(&issuer("algorithms = ['none']"), "`algorithms`: `none` is not accepted", "use `RS256`");
    check(&issuer("algorithms = []"), "`algorithms` is empty", "remove the key");
    check(
        &issuer("jwks = 'http://id.example.com/keys'"),
        "`jwks` cannot be used: only an address of this machine may do without `https`",
        "https://",
    );
    check(&issuer("groups_claim = ''"), "`groups_claim` is empty", "remove the key");
    check(&issuer("required_scopes = ['']"), "an entry of `required_scopes` is not a scope", "visible ASCII");
    check(
        &issuer("scope_includes = { a = ['b c'] }"),
        "an entry of `scope_includes` is not a scope",
        "visible ASCII",
    );
    check(
        &issuer("scope_includes = { a = 'b' }"),
        "`scope_includes` must be a table of lists of strings, found a string",
        "expected a table of lists",
    );
    check(&issuer("introspection = { client_secret = 'x' }"), "`client_id` is missing", "write `client_id`");
    check(
        &issuer("introspection = { client_id = 'x' }"),
        "`client_secret` is missing",
        "write `client_secret`",
    );
    check(
        &issuer("introspection = { client_id = '', client_secret = 'x' }"),
        "`client_id` is empty",
        "write its value",
    );
    check(
        &issuer("introspection = { client_id = 'x', client_secret = '${NO_SUCH}' }"),
        "`client_secret`: the variable `NO_SUCH` is not set",
        "set `NO_SUCH`",
    );
}

/// ACC-3: an unknown name in a rule is refused, with what was probably meant.
#[test]
fn unknown_names_in_rules() {
    assert_snapshot!(toml("[servers.github]\ncommand = 'x'\n[[policy]]\nwho = [\"*\"]\ndeny_tools = [\"gihub/delete_*\"]\n"), @r#"
    error: `deny_tools`: there is no server `gihub`
     --> bridgehead.toml:5:15
      |
    5 | deny_tools = ["gihub/delete_*"]
      |               ^^^^^^^^^^^^^^^^ did you mean `github/delete_*`?
      |
      = help: the servers are `github`, `bridgehead`
    "#);
    let around = format!(
        "[[auth.keys.ci]]\nsha256 = '{DIGEST}'\ngroups = ['build']\n[auth.issuers.corp]\nissuer = 'https://a'\naudiences = ['a']\n\
         [servers.files]\ncommand = 'x'\n"
    );
    let who = |who: &str| format!("{around}[[policy]]\nwho = ['{who}']\ntools = ['files/*']\n");
    check(&who("key:cy"), "`who`: there is no key `cy`", "did you mean `key:ci`?");
    check(&who("key:other"), "`who`: there is no key `other`", "bridgehead key new other");
    check(&who("key:bhk_A1b2C3d4E5f6G7h8"), "`who`: there is no key `…`", "never the key itself");
    check(&who("group:biuld"), "`who`: nobody is in a group `biuld`", "did you mean `group:build`?");
    check(&who("group:sales"), "`who`: nobody is in a group `sales`", "groups_claim");
    check(&who("crop/alice"), "`who`: there is no issuer `crop`", "did you mean `corp/alice`?");
    check(&who("other/alice"), "`who`: there is no issuer `other`", "[auth.issuers.other]");
    check(&who("corp/"), "`who`: `corp/` names nobody", "did you mean `corp/*`?");
    check(&who("corp"), "`who`: `corp` names nobody", "did you mean `corp/*`?");
    check(&who("ci"), "`who`: `ci` names nobody", "did you mean `key:ci`?");
    check(&who("build"), "`who`: `build` names nobody", "did you mean `group:build`?");
    check(&who("locla"), "`who`: `locla` names nobody", "did you mean `local`?");
    check(&who("local:alice"), "`who`: `local:alice` names nobody", "id -u");
    check(&who("proxy:bob"), "`who`: no proxy could name `bob`", "[auth.proxy]");
    check(&who("kye:ci"), "`who`: `kye:ci` names nobody", "did you mean `key:ci`?");
    let tools = |tools: &str| format!("{around}[[policy]]\nwho = ['*']\ntools = ['{tools}']\n");
    check(&tools("file/*"), "`tools`: there is no server `file`", "did you mean `files/*`?");
    check(&tools("git*/*"), "`tools`: there is no server `git*`", "the servers are `files`, `bridgehead`");
    check(&tools("files"), "`tools`: `files` is not `SERVER/NAME`", "did you mean `files/*`?");
    check(&tools("*"), "`tools`: `*` is not `SERVER/NAME`", "did you mean `*/*`?");
    check(&tools("read_file"), "`tools`: `read_file` is not `SERVER/NAME`", "files/read_*");
    check(&tools("files/"), "`tools`: `files/` is not `SERVER/NAME`", "did you mean `files/*`?");
    check(&tools("/x"), "`tools`: `/x` is not `SERVER/NAME`", "both may be patterns");
    check(
        &tools("files/a["),
        "`tools`: `files/a[` is not a pattern: unclosed character class; missing ']'",
        "stands for any text",
    );
    check(
        &tools("{files/a"),
        "`tools`: `{files/a` is not a pattern: unclosed alternate group; missing '}' (maybe escape '{' with '[{]'?)",
        "stands for any text",
    );
}

/// ACC-2: the command that makes a key can read rules that wait for the key; what serves cannot.
#[test]
fn rules_may_wait_for_a_key_that_is_being_made() {
    let text = "[[policy]]\nwho = ['key:ci', 'group:build']\ntools = ['*/*']\n";
    assert_eq!(refused("bridgehead.toml", text).0.len(), 2);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bridgehead.toml");
    std::fs::write(&file, text).unwrap();
    let read = load(Some(&file), &environment().making_keys(), folder.path()).unwrap();
    assert_eq!(read.policy[0].who.len(), 2);
    std::fs::write(&file, text.replace("key:ci", "key:a b")).unwrap();
    assert!(load(Some(&file), &environment().making_keys(), folder.path()).is_err());
    std::fs::write(&file, text.replace("key:ci", "corp/alice")).unwrap();
    assert!(load(Some(&file), &environment().making_keys(), folder.path()).is_err());
}

/// ACC-3: rules that say nothing, or of nobody.
#[test]
fn rules_without_effect() {
    check("[[policy]]\ntools = ['*/*']\n", "a rule needs `who`, or it speaks of nobody", "`key:NAME`");
    check(
        "[[policy]]\nwho = []\ntools = ['*/*']\n",
        "`who` is empty, so the rule speaks of nobody",
        "`group:NAME`",
    );
    check("[[policy]]\nwho = ['*']\n", "a `[[policy]]` rule allows nothing and denies nothing", "files/*");
    check("[[policy]]\nwho = ['*']\nread_only = true\n", "`read_only` without `tools` admits nothing", "*/*");
    check(
        "[[policy]]\nwho = ['*']\nscopes = { '*/*' = [] }\n",
        "`scopes`: `*/*` asks for no scope",
        "name one",
    );
    check(
        "[[policy]]\nwho = ['*']\nscopes = { 'x/y' = ['a'] }\n",
        "`scopes`: there is no server `x`",
        "`bridgehead`",
    );
    check(
        "[policy]\nwho = ['*']\n",
        "`policy` must be a list of tables, each under `[[policy]]`, found a table",
        "[[policy]]",
    );
    check(
        "policy = ['x']\n",
        "`policy` must be a list of tables, each under `[[policy]]`, found a string",
        "[[policy]]",
    );
    check(
        "[[policy]]\nwho = ['*']\ntools = ['*/*']\ndeny_tool = ['*/x']\n",
        "unknown key `deny_tool`",
        "did you mean `deny_tools`?",
    );
    check(
        "[[policy]]\nwho = ['*']\ntools = ['*/*']\n[servers.Bridgehead]\ncommand = 'x'\n",
        "no server may be called `Bridgehead`, because there are rules",
        "the gateway's own tools",
    );
    assert_eq!(config("[servers.bridgehead]\ncommand = 'x'\n").servers.len(), 1);
}

/// ACC-5: mistakes in a limit.
#[test]
fn mistakes_in_limits() {
    let rule = |lines: &str| format!("[[limits.rules]]\nwho = ['*']\n{lines}\n");
    check(&rule("rate = '60'"), "`rate`: `60` is not a rate", "60/min");
    check(&rule("rate = '60/fortnight'"), "`rate`: `60/fortnight` is not a rate", "`hour`, `day`");
    check(&rule("burst = 5"), "`burst` without `rate` limits nothing", "60/min");
    check(&rule(""), "a `[[limits.rules]]` rule limits nothing", "budget_per_day");
    check(&rule("tools = ['*/*']"), "a `[[limits.rules]]` rule limits nothing", "budget_per_day");
    check(
        &rule("concurrent = 0"),
        "`concurrent` must be a whole number from 1 to 4294967295, found `0`",
        "at once",
    );
    check(&rule("concurrent = 1\ntools = ['x/y']"), "`tools`: there is no server `x`", "the servers are");
    check("[[limits.rules]]\nrate = '1/s'\n", "a rule needs `who`, or it speaks of nobody", "`key:NAME`");
    check(
        &format!("[audit]\nstore = 'none'\n{}", rule("budget_per_day = 5")),
        "`budget_per_day` needs the record of calls, which `[audit] store = \"none\"` turns off",
        "sqlite",
    );
    check(
        &format!("{}[servers.bridgehead]\ncommand = 'x'\n", rule("concurrent = 1")),
        "no server may be called `bridgehead`, because there are rules",
        "rename it",
    );
}

/// ACC-6: mistakes in listeners.
#[test]
fn mistakes_in_listeners() {
    let key = format!("[[auth.keys.ci]]\nsha256 = '{DIGEST}'\n");
    let listener = |lines: &str| format!("{key}[http.listeners.a]\n{lines}\n");
    let address = "`listen` is not an address with a port";
    check(&listener("listen = 'everywhere'"), address, "unix:");
    check(&listener("listen = 'unix:'"), address, "unix:");
    check(&listener("auth = 'open'"), "listener `a` has no `listen`", "unix:PATH");
    check(
        &listener("listen = '127.0.0.1:4848'"),
        "listener `a` and `http.listen` have the same address",
        "`127.0.0.1:4848`",
    );
    check(
        &format!("{}[http.listeners.b]\nlisten = '127.0.0.1:1'\n", listener("listen = '127.0.0.1:1'")),
        "listener `b` and `a` have the same address",
        "give each its own",
    );
    check(
        &format!("{}[http.listeners.b]\nlisten = 'unix:x'\n", listener("listen = 'unix:x'")),
        "listener `b` and `a` have the same address",
        "give each its own",
    );
    check(
        &listener("listen = '0.0.0.0:1'\nauth = 'open'"),
        "`auth = \"open\"` on an address that other machines can reach",
        "127.0.0.1",
    );
    check(
        &listener("listen = 'unix:x'\ntls.cert_file = 'a'\ntls.key_file = 'b'"),
        "`tls` on a Unix socket has no use",
        "remove it",
    );
    check(&listener("listen = '127.0.0.1:1'\ntls.cert_file = 'a'"), "`tls` has no `key_file`", "name both");
    check(
        &listener("listen = '127.0.0.1:1'\ntls.cert_file = ''\ntls.key_file = 'b'"),
        "`cert_file` is empty",
        "name a path",
    );
    check(
        "[http.listeners.'a b']\nlisten = '127.0.0.1:1'\n",
        "`a b` cannot be the name of a listener",
        "1 to 64",
    );
    let long = format!("listen = 'unix:/{}'", "x".repeat(107));
    check(&listener(&long), "`listen`: the path of a Unix socket has at most 107 bytes", "the path is /xxx");
    let required = "`auth = \"required\"`, but nothing is configured that a client could show";
    check("[http.listeners.a]\nlisten = 'unix:x'\nauth = 'required'\n", required, "bridgehead key new NAME");
    check(
        "[http.listeners.a]\nlisten = '[::]:1'\n",
        "`listen` is an address that other machines can reach, and nothing is configured that a client could show",
        "bridgehead key new NAME",
    );
    for fine in
        ["listen = 'unix:x'\nauth = 'open'", "listen = '[::1]:1'\nauth = 'open'", "listen = '0.0.0.0:1'"]
    {
        assert_eq!(config(&listener(fine)).http.listeners.len(), 1, "{fine}");
    }
}

/// ACC-6: every web page may use the gateway only if nobody is admitted without credentials.
#[test]
fn any_origin_needs_credentials() {
    let key = format!("[[auth.keys.ci]]\nsha256 = '{DIGEST}'\n");
    let any = "[http]\nallowed_origins = ['*']\n";
    let message =
        |why: &str| format!("`allowed_origins = [\"*\"]` lets every web page use the gateway: {why}");
    check(any, &message("no credentials are configured"), "a key, an issuer, a proxy or a token");
    check(
        &format!("{any}[auth]\nlocal = true\n{key}"),
        &message("`auth.local` admits the local user without credentials"),
        "remove `local`",
    );
    check(
        &format!("{any}[http.listeners.a]\nlisten = '127.0.0.1:1'\nauth = 'open'\n{key}"),
        &message("listener `a` is open"),
        "Unix socket",
    );
    assert_eq!(config(&format!("{any}{key}")).http.allowed_origins, ["*"]);
    let token = "[http]\nallowed_origins = ['*']\ntoken_file = 'token'\n";
    assert_eq!(config(token).http.allowed_origins, ["*"]);
    let unix = format!("{any}[http.listeners.a]\nlisten = 'unix:x'\nauth = 'open'\n{key}");
    assert_eq!(config(&unix).http.listeners.len(), 1);
}
