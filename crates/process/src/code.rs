//! Gives back the memory of code that has run and will hardly run again.
//!
//! The system maps code in blocks around every place that is touched, so after its start a program keeps most of
//! itself resident: parsing of configuration, the command line, handshakes. Once that is done the mappings are let
//! go; what is still needed comes back from the file, page by page, at the price of a minor fault each.

use std::ops::Range;

/// Lets go of all code of this process that is mapped from files. Says how many bytes of mappings that were; on
/// other systems than Linux nothing happens.
pub fn release_code() -> usize {
    #[cfg(target_os = "linux")]
    {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let released = maps.lines().filter_map(code).filter(|range| crate::sys::let_go(range.clone()));
        released.map(|range| range.len()).sum()
    }
    #[cfg(not(target_os = "linux"))]
    0
}

/// The addresses of a mapping that holds code of a file: executable, and never written to.
#[cfg(target_os = "linux")]
fn code(line: &str) -> Option<Range<usize>> {
    let mut words = line.split_whitespace();
    let (addresses, kind, path) = (words.next()?, words.next()?, words.nth(3)?);
    if kind != "r-xp" || !path.starts_with('/') {
        return None;
    }
    let (start, end) = addresses.split_once('-')?;
    Some(usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn only_code_of_files_is_let_go() {
        #[track_caller]
        fn check(line: &str, expected: Option<(usize, usize)>) {
            assert_eq!(code(line).map(|range| (range.start, range.end)), expected, "{line}");
        }
        check("1000-3000 r-xp 00001000 fe:00 42     /usr/bin/a program", Some((0x1000, 0x3000)));
        check("1000-3000 r--p 00001000 fe:00 42     /usr/bin/program", None);
        check("1000-3000 rwxp 00001000 fe:00 42     /usr/bin/program", None);
        check("1000-3000 r-xs 00001000 fe:00 42     /usr/bin/program", None);
        check("1000-3000 r-xp 00000000 00:00 0      [vdso]", None);
        check("1000-3000 r-xp 00000000 00:00 0", None);
        check("no line", None);
    }

    #[test]
    fn the_program_goes_on() {
        fn resident() -> u64 {
            let smaps = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
            let line = smaps.lines().find(|line| line.starts_with("Rss:")).unwrap();
            line.split_whitespace().nth(1).unwrap().parse().unwrap()
        }
        let before = resident();
        assert!(release_code() > 0);
        let after = resident();
        assert!(after < before, "{before} kB, then {after} kB");
    }
}
