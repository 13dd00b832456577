//! The arguments of `symmc doctor`.

use clap::{Args as ClapArgs, ValueEnum};
use symmc::doctor::DoctorPart;

use super::values::parse_seconds;

pub const DOCTOR_EXAMPLES: &str = "\
Examples:
  symmc doctor
  symmc doctor --format json

Each line has a status:
  ok        it works
  limited   it works, with less than is possible
  missing   it is not there
  unknown   it gave no answer in time
Every line that is not ok ends with a remedy. The command changes nothing on the machine.

Exit codes: 0 whatever was found; 2 invalid arguments.";

#[derive(ClapArgs, Debug)]
pub struct DoctorArgs {
    /// How to print the report
    #[arg(long, value_enum, default_value_t = DoctorFormat::Text)]
    pub format: DoctorFormat,
    /// How long each driver or library may take to answer
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = parse_seconds)]
    pub timeout: f64,
    /// Examine only this part, in this process
    #[arg(long, hide = true, value_name = "PART", value_parser = parse_part)]
    pub part: Option<DoctorPart>,
}

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum DoctorFormat {
    /// One line per check
    Text,
    /// The same checks as JSON
    Json,
}

fn parse_part(text: &str) -> Result<DoctorPart, String> {
    let names = || DoctorPart::ALL.map(DoctorPart::name).join(", ");
    DoctorPart::from_name(text).ok_or_else(|| format!("unknown part {text}; expected one of {}", names()))
}
