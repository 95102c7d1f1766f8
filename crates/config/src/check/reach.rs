//! Resolves the paths of all confinements and checks them against each other, once every server is read.
//!
//! Links are followed only here; starting a server follows no links. So no server may be able to change where one of its
//! own paths, or another server's, leads when the configuration is read again.

use std::path::{Path, PathBuf};

use super::World;
use super::covered::{self, Besides};
use crate::section::Findings;
use crate::server::{FileAccess, Launch, ServerConfig};
use crate::trail::Trail;
use crate::tree::Span;

/// A server from the file, and its place there.
pub(super) struct Placed<'t> {
    pub(super) server: ServerConfig,
    /// Its name in the file.
    pub(super) span: &'t Span,
    /// The file that its variables come from.
    pub(super) env_file: Option<PathBuf>,
}

/// Why a server is refused, and what to do about it.
pub(super) struct Refusal {
    pub(super) reason: String,
    pub(super) cure: String,
}

/// Resolves the paths of all servers. Refuses each server that could not be held to its paths; the others still run.
pub(super) fn settle(
    placed: &mut [Placed<'_>],
    besides: Besides<'_>,
    world: World<'_>,
    findings: &mut Findings,
) {
    let mut trails: Vec<Vec<Trail>> = Vec::with_capacity(placed.len());
    for one in placed.iter_mut() {
        let files = one.server.confinement.as_mut().and_then(|asked| asked.files.as_mut());
        let settled = match files {
            Some(files) if !matches!(one.server.launch, Launch::Unusable { .. }) => resolve(files, world),
            _ => Ok(Vec::new()),
        };
        trails.push(settled.unwrap_or_else(|refusal| {
            refuse(one, refusal, findings);
            Vec::new()
        }));
    }
    let file = findings.source.path.file_name().map(|name| world.base.join(name)).unwrap_or_default();
    for (index, refusal) in covered::refused(&file, placed, besides, world) {
        refuse(&mut placed[index], refusal, findings);
    }
    for index in 0..placed.len() {
        let runs = !matches!(placed[index].server.launch, Launch::Unusable { .. });
        if runs && let Some(refusal) = inside_another_servers_folder(index, &trails[index], placed) {
            refuse(&mut placed[index], refusal, findings);
        }
    }
}

/// Resolves the paths of one server. Drops each path inside a folder that the server may write anyway.
fn resolve(files: &mut FileAccess, world: World<'_>) -> Result<Vec<Trail>, Refusal> {
    let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| world.base.join(path));
    let written: Vec<PathBuf> = files.write.iter().map(absolute).collect();
    // Compares names only: the server decides what exists in its folders.
    let nested = |path: &Path, among: &[PathBuf]| {
        let below = |folder: &PathBuf| path.strip_prefix(folder).is_ok_and(stays_below);
        among.iter().any(below)
    };
    let writes: Vec<PathBuf> = written.iter().filter(|path| !nested(path, &written)).cloned().collect();
    let reads: Vec<PathBuf> =
        files.read.iter().map(absolute).filter(|path| !nested(path, &written)).collect();
    let follow = |path: &PathBuf| match Trail::of(path) {
        trail if trail.circular => Err(Refusal {
            reason: format!("the links of `{}` in its `files` lead in a circle", path.display()),
            cure: "correct the path".to_owned(),
        }),
        trail => Ok(trail),
    };
    let mut kept: Vec<Trail> = Vec::new();
    let (mut read, mut write) = (Vec::new(), Vec::new());
    let writes = writes.iter().map(follow).collect::<Result<Vec<_>, _>>()?;
    let reads = reads.iter().map(follow).collect::<Result<Vec<_>, _>>()?;
    for (place, trail) in writes.iter().enumerate() {
        if !is_dropped(trail, &writes, Some(place))? {
            write.push(trail.end.clone());
            kept.push(trail.clone());
        }
    }
    for trail in &reads {
        if !is_dropped(trail, &writes, None)? && !read.contains(&trail.end) {
            read.push(trail.end.clone());
            kept.push(trail.clone());
        }
    }
    *files = FileAccess { read, write };
    Ok(kept)
}

/// Whether the rest of a path below a folder cannot leave that folder.
fn stays_below(rest: &Path) -> bool {
    let mut names = rest.components().peekable();
    names.peek().is_some() && names.all(|name| matches!(name, std::path::Component::Normal(_)))
}

/// Whether a path is redundant: it is one of `writes`, lies inside one, or is another way to one. A path that leads through
/// such a folder and out again is refused, because the server decides where it leads.
fn is_dropped(trail: &Trail, writes: &[Trail], place: Option<usize>) -> Result<bool, Refusal> {
    let mut dropped = false;
    for (other, folder) in writes.iter().enumerate().filter(|(other, _)| Some(*other) != place) {
        if trail.end == folder.end {
            // Of two paths to the same place, the first is kept.
            dropped |= place.is_none_or(|place| other < place);
        } else if trail.end.starts_with(&folder.end) {
            dropped = true;
        } else if trail.leads_through(&folder.end) {
            return Err(Refusal {
                reason: format!(
                    "a path of its `files` leads through `{}`, which it may write, to `{}`",
                    folder.end.display(),
                    trail.end.display()
                ),
                cure: "write the final path, without links in folders that the server may change".to_owned(),
            });
        }
    }
    Ok(dropped)
}

/// Refuses a server if another one may write a folder on the way of its paths, and so could change where they lead.
fn inside_another_servers_folder(index: usize, trails: &[Trail], placed: &[Placed<'_>]) -> Option<Refusal> {
    let others = placed.iter().enumerate().filter(|(other, _)| *other != index);
    others.into_iter().find_map(|(_, other)| {
        let folder = writable(&other.server).iter().find_map(|folder| {
            let trail = trails.iter().find(|trail| trail.leads_through(folder))?;
            Some((folder, trail))
        });
        let (folder, trail) = folder?;
        Some(Refusal {
            reason: format!(
                "`{}` in its `files` lies in `{}`, which server `{}` may write",
                trail.end.display(),
                folder.display(),
                other.server.name
            ),
            cure: format!(
                "give `{}` a narrower `write`, or this server a folder elsewhere; both may have exactly the same folder",
                other.server.name
            ),
        })
    })
}

/// What a server may write; empty if the server does not run or its files are not confined.
pub(super) fn writable(server: &ServerConfig) -> &[PathBuf] {
    match (&server.launch, &server.confinement) {
        (Launch::Unusable { .. }, _) | (_, None) => &[],
        (_, Some(asked)) => asked.files.as_ref().map_or(&[], |files| &files.write),
    }
}

fn refuse(one: &mut Placed<'_>, Refusal { reason, cure }: Refusal, findings: &mut Findings) {
    findings.enter_server(one.server.name.as_str());
    findings.failure(findings.diagnostic(&reason, one.span).help(&cure));
    findings.leave_server();
    one.server.launch = Launch::Unusable { reason: format!("{reason}; {cure}") };
}
