//! The confinement of a program that is built without the feature `sandbox`: there is none, so a start with one is refused.
//! The gateway refuses it already before it asks a shim (`Spec::resolve`); this is for a gateway that is built otherwise.

use std::convert::Infallible;
use std::io;
use std::path::Path;

use rustix::io::Errno;

use crate::confinement::{Confined, Confinement, Feature};
use crate::message::Stage;

/// Walls, which nothing can make.
pub(super) enum Walls {}

/// Why there are no walls.
pub(super) struct Refusal;

impl Walls {
    pub(super) fn prepare(_asked: Confinement, _program: &Path, _newest: u8) -> Result<Self, Refusal> {
        Err(Refusal)
    }

    pub(super) fn close(self) -> Result<Confined, Infallible> {
        match self {}
    }
}

impl Refusal {
    pub(super) fn failure(self) -> (Stage, io::Error) {
        (Stage::Confinement(Feature::Landlock), Errno::OPNOTSUPP.into())
    }
}

pub(super) fn encode(gap: Infallible) -> [u8; 5] {
    match gap {}
}

pub(super) fn decode(_bytes: [u8; 5]) -> Option<(Feature, io::Error)> {
    None
}
