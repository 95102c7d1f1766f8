//! Translates the references in a client's values into ours, and leaves every value unresolved.
//!
//! Each client replaces other forms. What a client would leave as it is stays as it is: a `${` of its own becomes `$${`, which
//! the gateway reads as text. What must stay true: a reference never becomes text, and a text never becomes a reference.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The forms that a client replaces, besides `${env:X}`, `${input:ID}` and `${file:PATH}`, which nobody writes as a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Syntax {
    /// `${X}` and `${X:-default}`
    pub(super) braces: bool,
    /// `$X`
    pub(super) bare: bool,
    /// `%X%`
    pub(super) percent: bool,
    /// `${userHome}`, `${workspaceFolder}` and their like
    pub(super) editor: bool,
    /// `{env:X}` and `{file:PATH}`
    pub(super) single: bool,
    /// `${{ secrets.X }}`
    pub(super) secrets: bool,
}

impl Syntax {
    pub(super) const NONE: Self =
        Self { braces: false, bare: false, percent: false, editor: false, single: false, secrets: false };
    pub(super) const BRACES: Self = Self { braces: true, ..Self::NONE };
    pub(super) const SHELL: Self = Self { bare: true, ..Self::BRACES };
    pub(super) const EDITOR: Self = Self { editor: true, ..Self::NONE };
}

/// A question of an editor, which `${input:ID}` refers to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Input {
    pub(super) description: Option<String>,
    pub(super) default: Option<String>,
}

/// What a translation depends on.
#[derive(Clone, Copy)]
pub(super) struct Translator<'t> {
    pub(super) syntax: Syntax,
    /// The folder of the project, if the file belongs to one.
    pub(super) project: Option<&'t Path>,
    /// The folder of the file.
    pub(super) folder: &'t Path,
    pub(super) inputs: &'t BTreeMap<String, Input>,
    /// The variables of the process. Only their names are looked at.
    pub(super) set: &'t BTreeMap<String, String>,
}

/// A translated value.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Translated {
    pub(super) text: String,
    /// The variables without a default that it refers to, and what is known about them.
    pub(super) needs: BTreeMap<String, Option<String>>,
}

/// Why a value has no translation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NoEqual(pub(super) String);

/// What a reference stands for.
enum Meaning {
    /// A variable: its name, its default and what is known about it.
    Variable(String, Option<String>, Option<String>),
    /// A text.
    Text(String),
    /// A file that holds the value.
    File(PathBuf),
}

impl Translator<'_> {
    /// Translates a value.
    pub(super) fn translate(&self, text: &str) -> Result<Translated, NoEqual> {
        let mut out = Translated::default();
        let mut rest = text;
        while !rest.is_empty() {
            match self.reference(rest)? {
                Some((meaning, length)) => {
                    self.put(meaning, &mut out)?;
                    rest = &rest[length..];
                }
                None => {
                    if rest.starts_with("${") {
                        out.text.push('$');
                    }
                    let next = rest.chars().next().map_or(0, char::len_utf8);
                    out.text.push_str(&rest[..next]);
                    rest = &rest[next..];
                }
            }
        }
        Ok(out)
    }

    fn put(&self, meaning: Meaning, out: &mut Translated) -> Result<(), NoEqual> {
        let reference = match meaning {
            Meaning::Text(text) => {
                out.text.push_str(&text.replace("${", "$${"));
                return Ok(());
            }
            Meaning::File(path) => {
                let path = path.display().to_string();
                if path.contains(['}', '\0']) || path.contains("${") {
                    return Err(NoEqual(format!("the path `{path}` cannot be written in `${{file:…}}`")));
                }
                format!("${{file:{path}}}")
            }
            Meaning::Variable(name, Some(default), _) => format!("${{{name}:-{default}}}"),
            Meaning::Variable(name, None, about) => {
                let reference = format!("${{{name}}}");
                out.needs.insert(name, about);
                reference
            }
        };
        // The gateway reads `$${` as a text.
        if out.text.ends_with('$') {
            return Err(NoEqual("a `$` right before a variable cannot be written".to_owned()));
        }
        out.text.push_str(&reference);
        Ok(())
    }

    /// The reference that a text begins with, and its length.
    fn reference(&self, text: &str) -> Result<Option<(Meaning, usize)>, NoEqual> {
        if let Some(rest) = text.strip_prefix("${{") {
            let known = self.syntax.secrets.then(|| rest.split_once("}}")).flatten();
            let name = known
                .and_then(|(inner, _)| inner.trim().strip_prefix("secrets."))
                .filter(|name| is_name(name));
            let (Some((inner, _)), Some(name)) = (known, name) else { return Ok(None) };
            let about = Some("a secret of the client".to_owned());
            return Ok(Some((Meaning::Variable(name.to_owned(), None, about), "${{}}".len() + inner.len())));
        }
        if let Some((inner, _)) = text.strip_prefix("${").and_then(|rest| rest.split_once('}')) {
            return Ok(self.in_braces(inner)?.map(|meaning| (meaning, "${}".len() + inner.len())));
        }
        if let (true, Some((inner, _))) =
            (self.syntax.single, text.strip_prefix('{').and_then(|rest| rest.split_once('}')))
        {
            let meaning = match inner.split_once(':') {
                Some(("env", name)) if is_name(name) => Some(Meaning::Variable(name.to_owned(), None, None)),
                Some(("file", path)) if !path.is_empty() => Some(self.file(path)),
                _ => None,
            };
            return Ok(meaning.map(|meaning| (meaning, "{}".len() + inner.len())));
        }
        // A `$` or `%` is also part of other texts, such as passwords, so a name must look like that of a variable, or be one.
        let likely = |name: &&str| {
            is_name(name)
                && !name.contains('-')
                && (!name.contains(|letter: char| letter.is_ascii_lowercase())
                    || self.set.contains_key(*name))
        };
        let variable = |name: &str| Meaning::Variable(name.to_owned(), None, None);
        if let (true, Some(rest)) = (self.syntax.bare, text.strip_prefix('$')) {
            let end = rest.find(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_'));
            let name = Some(&rest[..end.unwrap_or(rest.len())]).filter(likely);
            return Ok(name.map(|name| (variable(name), 1 + name.len())));
        }
        if let (true, Some((name, _))) =
            (self.syntax.percent, text.strip_prefix('%').and_then(|rest| rest.split_once('%')))
        {
            let name = Some(name).filter(likely);
            return Ok(name.map(|name| (variable(name), 2 + name.len())));
        }
        Ok(None)
    }

    /// What stands between `${` and `}`; `None` if the client takes it as a text.
    fn in_braces(&self, inner: &str) -> Result<Option<Meaning>, NoEqual> {
        let found = match inner.split_once(':') {
            Some(("env", name)) if is_name(name) => Meaning::Variable(name.to_owned(), None, None),
            Some(("input", id)) if !id.is_empty() => self.input(id),
            Some(("file", path)) if !path.is_empty() => self.file(path),
            Some((kind @ ("command" | "config" | "extensionInstallFolder"), _)) if self.syntax.editor => {
                return Err(NoEqual(format!("only an editor can answer `${{{kind}:…}}`")));
            }
            _ if self.syntax.editor => match inner {
                "userHome" => Meaning::Variable("HOME".to_owned(), None, None),
                "pathSeparator" | "/" => Meaning::Text("/".to_owned()),
                "workspaceFolder" | "workspaceRoot" => {
                    Meaning::Text(self.workspace(inner)?.display().to_string())
                }
                "workspaceFolderBasename" => {
                    let name = self.workspace(inner)?.file_name().unwrap_or_default();
                    Meaning::Text(name.to_string_lossy().into_owned())
                }
                _ => return Ok(None),
            },
            _ if self.syntax.braces => {
                let (name, default) = match inner.split_once(":-") {
                    Some((name, default)) => (name, Some(default.to_owned())),
                    None => (inner, None),
                };
                if !is_name(name) || default.as_ref().is_some_and(|default| default.contains("${")) {
                    return Ok(None);
                }
                Meaning::Variable(name.to_owned(), default, None)
            }
            _ => return Ok(None),
        };
        Ok(Some(found))
    }

    fn workspace(&self, asked: &str) -> Result<&Path, NoEqual> {
        self.project.ok_or_else(|| {
            NoEqual(format!(
                "`${{{asked}}}` is the folder that is open in the editor, and the gateway has none"
            ))
        })
    }

    fn input(&self, id: &str) -> Meaning {
        let letter = |next: char| if next.is_ascii_alphanumeric() { next.to_ascii_uppercase() } else { '_' };
        let mut name: String = id.chars().map(letter).collect();
        if !is_name(&name) {
            name = format!("INPUT_{name}");
        }
        let input = self.inputs.get(id);
        let default = input
            .and_then(|input| input.default.clone())
            .filter(|default| !default.is_empty() && !default.contains(['}', '$']));
        let about = input.and_then(|input| input.description.clone());
        Meaning::Variable(
            name,
            default,
            Some(about.unwrap_or_else(|| format!("what the editor asks as `{id}`"))),
        )
    }

    fn file(&self, path: &str) -> Meaning {
        Meaning::File(if path.starts_with("~/") { PathBuf::from(path) } else { self.folder.join(path) })
    }
}

/// Whether the gateway takes this as the name of a variable.
pub(super) fn is_name(name: &str) -> bool {
    let other = |next: char| next.is_ascii_alphanumeric() || next == '_' || next == '-';
    name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_') && name.chars().all(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPENCODE: Syntax = Syntax { single: true, ..Syntax::NONE };
    const GEMINI: Syntax = Syntax { percent: true, ..Syntax::SHELL };
    const CONTINUE: Syntax = Syntax { secrets: true, ..Syntax::NONE };

    fn translated(syntax: Syntax, project: Option<&str>, text: &str) -> Result<Translated, NoEqual> {
        let input = |description: &str, default: &str| Input {
            description: Some(description.to_owned()),
            default: Some(default.to_owned()).filter(|default| !default.is_empty()),
        };
        let inputs = BTreeMap::from([
            ("api-key".to_owned(), input("Key of the shop", "")),
            ("region".to_owned(), input("Region", "eu")),
        ]);
        let set = BTreeMap::from([("lower".to_owned(), "x".to_owned())]);
        let project = project.map(Path::new);
        Translator { syntax, project, folder: Path::new("/cfg"), inputs: &inputs, set: &set }.translate(text)
    }

    #[track_caller]
    fn check(syntax: Syntax, text: &str, expected: &str, needs: &[&str]) {
        let found = translated(syntax, Some("/srv/shop"), text).unwrap();
        assert_eq!(found.text, expected, "{text}");
        assert_eq!(found.needs.keys().map(String::as_str).collect::<Vec<_>>(), needs, "{text}");
    }

    /// JOIN-1: each client's references become ours, and nothing else does.
    #[test]
    fn references() {
        // Forms that everybody means as references.
        for syntax in
            [Syntax::NONE, Syntax::BRACES, Syntax::SHELL, Syntax::EDITOR, OPENCODE, GEMINI, CONTINUE]
        {
            check(syntax, "a ${env:X_1} b", "a ${X_1} b", &["X_1"]);
            check(syntax, "${input:api-key}", "${API_KEY}", &["API_KEY"]);
            check(syntax, "${input:region}", "${REGION:-eu}", &[]);
            check(syntax, "${input:7 of}", "${INPUT_7_OF}", &["INPUT_7_OF"]);
            check(syntax, "Bearer ${file:/run/t}", "Bearer ${file:/run/t}", &[]);
            check(syntax, "${file:t}${file:~/t}", "${file:/cfg/t}${file:~/t}", &[]);
            check(syntax, "100 $ ü } {", "100 $ ü } {", &[]);
            check(syntax, "", "", &[]);
        }
        check(
            Syntax::NONE,
            "Authorization:${AUTH} $X {env:X} %X%",
            "Authorization:$${AUTH} $X {env:X} %X%",
            &[],
        );
        check(Syntax::NONE, "$${A} ${", "$$${A} $${", &[]);
        check(
            Syntax::BRACES,
            "${A}/${B:-b c} $A ${a.b} ${A:-${B}}",
            "${A}/${B:-b c} $A $${a.b} $${A:-${B}}",
            &["A", "B"],
        );
        check(
            Syntax::SHELL,
            "$A-${B}$C_1.$ $lower $other $9",
            "${A}-${B}${C_1}.$ ${lower} $other $9",
            &["A", "B", "C_1", "lower"],
        );
        check(GEMINI, "%A%/100%/%of% 5%", "${A}/100%/%of% 5%", &["A"]);
        check(Syntax::EDITOR, "${userHome}${/}x${pathSeparator}y", "${HOME}/x/y", &["HOME"]);
        check(Syntax::EDITOR, "${workspaceFolder}/a ${workspaceFolderBasename}", "/srv/shop/a shop", &[]);
        check(Syntax::EDITOR, "${X} $X", "$${X} $X", &[]);
        check(
            OPENCODE,
            "{env:A} {file:t} {file:/t} {env:} {b} ${A}",
            "${A} ${file:/cfg/t} ${file:/t} {env:} {b} $${A}",
            &["A"],
        );
        check(CONTINUE, "${{ secrets.A }}${{secrets.B}}", "${A}${B}", &["A", "B"]);
        check(CONTINUE, "${{ inputs.A }} ${{", "$${{ inputs.A }} $${{", &[]);
        check(Syntax::NONE, "${{ secrets.A }}", "$${{ secrets.A }}", &[]);
    }

    #[test]
    fn what_is_known_about_variables() {
        let found = translated(Syntax::EDITOR, None, "${input:api-key} ${input:other}").unwrap();
        assert_eq!(found.needs["API_KEY"].as_deref(), Some("Key of the shop"));
        assert_eq!(found.needs["OTHER"].as_deref(), Some("what the editor asks as `other`"));
    }

    /// JOIN-1: what has no equal is a reason, not another value.
    #[test]
    fn without_an_equal() {
        #[track_caller]
        fn check(syntax: Syntax, text: &str, said: &str) {
            let NoEqual(reason) = translated(syntax, None, text).unwrap_err();
            assert!(reason.contains(said), "{reason}");
        }
        check(Syntax::EDITOR, "${workspaceFolder}/x", "`${workspaceFolder}` is the folder that is open");
        check(Syntax::EDITOR, "${command:pick}", "`${command:…}`");
        check(Syntax::EDITOR, "${config:a.b}", "`${config:…}`");
        check(Syntax::SHELL, "$$A", "right before a variable");
        check(Syntax::EDITOR, "$${env:A}", "right before a variable");
        check(OPENCODE, "{file:/a${b}", "cannot be written");
    }
}
