//! The arguments of `symmc doctor`.

use clap::{Args as ClapArgs, ValueEnum};
use symmc::doctor::DoctorPart;

use super::values::parse_seconds;

pub const DOCTOR_EXAMPLES: &str = "\
Examples:
  symmc doctor
  symmc doctor --format json

Each line has a status: ok; limited: there, with less than there could be; missing; unknown: nothing answered. What is not
ok says what to do. Everything is asked, nothing is changed.

Exit codes: 0 whatever was found; 2 other arguments.";

#[derive(ClapArgs, Debug)]
pub struct DoctorArgs {
    /// What to print
    #[arg(long, value_enum, default_value_t = DoctorFormat::Text)]
    pub format: DoctorFormat,
    /// How long drivers and libraries may take to answer
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = parse_seconds)]
    pub timeout: f64,
    /// Ask this part alone, in this process
    #[arg(long, hide = true, value_name = "PART", value_parser = parse_part)]
    pub part: Option<DoctorPart>,
}

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum DoctorFormat {
    /// A line for each thing
    Text,
    /// The same for programs
    Json,
}

fn parse_part(text: &str) -> Result<DoctorPart, String> {
    let names = || DoctorPart::ALL.map(DoctorPart::name).join(", ");
    DoctorPart::from_name(text).ok_or_else(|| format!("no part {text}; expected one of {}", names()))
}
