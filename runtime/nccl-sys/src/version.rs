//! The version of a library, as `ncclGetVersion` encodes it.

use std::fmt;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Version {
    /// The first number; 2 for every library in use.
    pub major: u32,
    /// The second number: the release.
    pub minor: u32,
    pub patch: u32,
}

impl Version {
    /// The oldest accepted version: the first with windows.
    pub const OLDEST: Version = Version::new(2, 27, 0);

    pub const fn new(major: u32, minor: u32, patch: u32) -> Version {
        Version { major, minor, patch }
    }

    /// Decodes the result of `ncclGetVersion`: `MNPP` up to 2.8 (2708 is 2.7.8), `MNNPP` from 2.9 on (22809
    /// is 2.28.9). A negative code, which no library returns, is version 0.0.0.
    pub fn from_code(code: i32) -> Version {
        let code = u32::try_from(code).unwrap_or(0);
        let unit = if code < 10_000 { 1_000 } else { 10_000 };
        Version::new(code / unit, code % unit / 100, code % 100)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_both_encodings() {
        for (code, numbers) in [
            (2402, (2, 4, 2)),
            (2708, (2, 7, 8)),
            (2804, (2, 8, 4)),
            (20908, (2, 9, 8)),
            (21805, (2, 18, 5)),
            (22707, (2, 27, 7)),
            (23203, (2, 32, 3)),
            (30001, (3, 0, 1)),
            (-1, (0, 0, 0)),
        ] {
            let version = Version::from_code(code);
            assert_eq!((version.major, version.minor, version.patch), numbers, "{code}");
        }
        assert!(Version::from_code(2804) < Version::from_code(20908));
        assert!(Version::from_code(22605) < Version::OLDEST && Version::OLDEST <= Version::from_code(22703));
    }
}
