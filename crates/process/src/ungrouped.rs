//! Why no control group can enforce the limits of a tree, in words that name the cure.

/// What is missing for control groups. The nursery finds it out, the shim reports it, and people read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ungrouped {
    /// No file system of control groups (version 2) is mounted.
    NoMount,
    /// The gateway's group is not below the mounted one.
    OutOfSight,
    /// The gateway's group lacks the memory and pids controllers.
    NoControllers,
    /// The gateway is in the root group of the machine.
    Machine,
    /// The group was not delegated to the gateway.
    NotDelegated,
    /// Other programs are in the group.
    NotAlone,
    /// All conditions were met, but the system refused.
    Refused,
}

impl Ungrouped {
    const ALL: [Self; 7] = [
        Self::NoMount,
        Self::OutOfSight,
        Self::NoControllers,
        Self::Machine,
        Self::NotDelegated,
        Self::NotAlone,
        Self::Refused,
    ];

    pub(crate) fn encode(self) -> i32 {
        self as i32
    }

    pub(crate) fn decode(number: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.encode() == number)
    }

    /// What is missing, and the cure.
    pub(crate) const fn why(self) -> &'static str {
        match self {
            Self::NoMount => {
                "no cgroup v2 file system is mounted; boot with it (`systemd.unified_cgroup_hierarchy=1`), or have the \
                 container runtime show it at `/sys/fs/cgroup`"
            }
            Self::OutOfSight => {
                "the gateway's own control group is not below the cgroup v2 file system that it sees; in a container, \
                 give it a cgroup namespace of its own (`--cgroupns=private`)"
            }
            Self::NoControllers => {
                "the gateway's control group has no memory and pids controllers of version 2; run it as a systemd \
                 service with `Delegate=memory pids`, on a machine that does not keep them in version 1"
            }
            Self::Machine => {
                "the gateway runs in the root control group of the machine, which must not be divided; run it as a \
                 systemd service with `Delegate=yes`, or in a control group of its own"
            }
            Self::NotDelegated => {
                "the gateway's control group was not delegated to it; run it as a systemd service with `Delegate=yes` \
                 (by hand: `systemd-run --user --scope -p Delegate=yes bridgehead serve`), or in a container whose \
                 `/sys/fs/cgroup` is its own and writable"
            }
            Self::NotAlone => {
                "other programs are in the gateway's control group, and the gateway must not move them; run it as a \
                 systemd service of its own with `Delegate=yes`, without a shell or another program around it"
            }
            Self::Refused => {
                "the system refused to make a control group for a tree or to start a process in it; that needs Linux \
                 5.7 or later and, in a container, a seccomp profile that allows `clone3`"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_survives_the_way_and_names_a_cure() {
        for known in Ungrouped::ALL {
            assert_eq!(Ungrouped::decode(known.encode()), Some(known));
            assert!(known.why().contains(';'), "{known:?} has no cure");
        }
        assert_eq!(Ungrouped::decode(77), None);
    }
}
