//! The plan as a whole: its programs, their ranks, groups and signatures, and its fixed memory.

use std::collections::BTreeMap;
use std::ops::Deref;

use symmc_ir::collective::LL128_LINE;
use symmc_ir::entity::Entity;
use symmc_ir::verify::MAX_RANKS;
use symmc_ir::{Dim, Graph, GroupId, Members, Type, parallel};
use symmc_plan::{ALIGN, ArenaKind, Arenas, Fixed, MAX_SIZE, Plan, Role, Symbols, Unread, VERSION, sha256};

use super::error::{CheckError, ProgramId};

/// About the bytes of a line of a program's text.
const BYTES_OF_LINE: usize = 64;

/// A planned program.
pub struct PlannedProgram {
    read: symmc_plan::ReadProgram,
    /// The index of each of its groups in [`Programs::groups`].
    groups: Vec<usize>,
}

impl PlannedProgram {
    /// The index of a group in [`Programs::groups`].
    pub fn group(&self, group: GroupId) -> usize {
        self.groups.get(group.index()).copied().unwrap_or(0)
    }

    /// The program alone.
    pub fn into_read(self) -> symmc_plan::ReadProgram {
        self.read
    }
}

impl Deref for PlannedProgram {
    type Target = symmc_plan::ReadProgram;

    fn deref(&self) -> &symmc_plan::ReadProgram {
        &self.read
    }
}

/// A group of ranks, the same in all programs that have one of this name.
pub struct Group {
    /// Its name.
    pub name: String,
    /// Its members.
    pub members: Members,
    /// The number of ranks in each cell.
    pub size: u32,
}

/// The programs of a plan.
pub struct Programs {
    /// The imported program.
    pub source: Graph,
    /// The planned ones.
    pub planned: Vec<PlannedProgram>,
    /// All groups of the planned programs, each name once.
    pub groups: Vec<Group>,
}

/// Reads the programs of a plan.
///
/// # Errors
/// What is wrong with the version, the number of ranks, a text or its signature. Nothing else of the plan
/// has a meaning then.
pub fn read(plan: &Plan) -> Result<Programs, Vec<CheckError>> {
    if plan.version != VERSION {
        return Err(vec![CheckError::Version { expected: VERSION, found: plan.version }]);
    }
    if !(1..=MAX_RANKS).contains(&plan.ranks) {
        return Err(vec![CheckError::Ranks { expected: MAX_RANKS, found: plan.ranks }]);
    }
    let mut errors = Vec::new();
    let hash = sha256(plan.source.text.as_bytes());
    if hash != plan.source.hash {
        errors.push(CheckError::SourceHash { expected: plan.source.hash.clone(), found: hash });
    }
    let planned = plan.programs.iter().enumerate().map(|(p, text)| (ProgramId::Planned(p), text));
    let texts: Vec<_> = [(ProgramId::Source, &plan.source.text)].into_iter().chain(planned).collect();
    let lines = texts.iter().map(|(_, text)| text.len() / BYTES_OF_LINE).sum();
    let mut read = Vec::with_capacity(texts.len());
    let one = |(program, text): (ProgramId, &String)| (program, symmc_plan::ReadProgram::read(text));
    for (program, result) in parallel::map(texts, lines, one) {
        match result {
            Ok(program) => read.push(program),
            Err(Unread::Text(error)) => {
                errors.push(CheckError::Text { program, error: error.to_string() });
            }
            Err(Unread::Invalid(found)) => {
                let all = found.iter().map(|v| CheckError::Invalid { program, violation: v.to_string() });
                errors.extend(all);
            }
        }
    }
    if read.len() <= plan.programs.len() {
        return Err(errors);
    }
    let planned = read.split_off(1);
    let Some(source) = read.pop().map(|p| p.graph) else { return Err(errors) };
    if source.ranks.is_some_and(|r| r != plan.ranks) {
        let (program, found) = (ProgramId::Source, source.ranks);
        errors.push(CheckError::ProgramRanks { program, expected: plan.ranks, found });
    }
    for (p, symmc_plan::ReadProgram { graph, .. }) in planned.iter().enumerate() {
        let program = ProgramId::Planned(p);
        if graph.ranks != Some(plan.ranks) {
            errors.push(CheckError::ProgramRanks { program, expected: plan.ranks, found: graph.ranks });
        }
        signature(&source, graph, program, &mut errors);
    }
    let (groups, of_program) = groups(&planned, plan.ranks, &mut errors);
    if !errors.is_empty() {
        return Err(errors);
    }
    let planned = planned.into_iter().zip(of_program).map(|(read, groups)| PlannedProgram { read, groups });
    Ok(Programs { source, planned: planned.collect(), groups })
}

/// The groups of all programs by name, and for each program the index of each of its groups.
fn groups(
    planned: &[symmc_plan::ReadProgram],
    ranks: u32,
    errors: &mut Vec<CheckError>,
) -> (Vec<Group>, Vec<Vec<usize>>) {
    let mut all: Vec<Group> = Vec::new();
    let mut first: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    let mut of_program = Vec::with_capacity(planned.len());
    for (p, symmc_plan::ReadProgram { graph, .. }) in planned.iter().enumerate() {
        let mut of_group = Vec::with_capacity(graph.groups.len());
        for (id, group) in graph.groups.iter() {
            let size = graph.group_size(id).unwrap_or(ranks);
            let &mut (at, other) = first.entry(group.name.clone()).or_insert((all.len(), p));
            match all.get(at) {
                None => {
                    all.push(Group { name: group.name.clone(), members: group.members.clone(), size });
                }
                Some(known) if known.members != group.members => {
                    let (group, other) = (group.name.clone(), ProgramId::Planned(other));
                    errors.push(CheckError::GroupMembers { program: ProgramId::Planned(p), group, other });
                }
                Some(_) => {}
            }
            of_group.push(at);
        }
        of_program.push(of_group);
    }
    (all, of_program)
}

/// Compares inputs and outputs of a planned program with those of the source.
fn signature(source: &Graph, planned: &Graph, program: ProgramId, errors: &mut Vec<CheckError>) {
    let mut differ = |what: String, expected: String, found: String| {
        if expected != found {
            errors.push(CheckError::Signature { program, what, expected, found });
        }
    };
    let count = |n: usize| n.to_string();
    differ("the number of inputs".into(), count(source.inputs.len()), count(planned.inputs.len()));
    differ("the number of outputs".into(), count(source.outputs.len()), count(planned.outputs.len()));
    let narrowed = narrowed(source, planned);
    for (i, (s, p)) in source.inputs.values().zip(planned.inputs.values()).enumerate() {
        differ(format!("the kind of input {i}"), format!("{:?}", s.kind), format!("{:?}", p.kind));
        differ(format!("the source of input {i}"), format!("{:?}", s.source), format!("{:?}", p.source));
        let [expected, found] = types(source.ty(s.value), planned.ty(p.value), &narrowed, planned);
        differ(format!("the type of input {i}"), expected, found);
        if s.data != p.data {
            differ(format!("the data of input {i}"), "as there".into(), "other".into());
        }
    }
    for (k, (s, p)) in source.outputs.iter().zip(&planned.outputs).enumerate() {
        differ(format!("the kind of output {k}"), format!("{:?}", s.kind), format!("{:?}", p.kind));
        let [expected, found] = types(source.ty(s.value), planned.ty(p.value), &narrowed, planned);
        differ(format!("the type of output {k}"), expected, found);
    }
}

/// The symbols of the source, with the ranges of the planned program.
fn narrowed(source: &Graph, planned: &Graph) -> Symbols {
    let mut symbols = source.symbols.clone();
    for symbol in symbols.values_mut() {
        if let Some(p) = planned.symbols.values().find(|p| p.name == symbol.name) {
            (symbol.min, symbol.max) = (p.min, p.max);
        }
    }
    symbols
}

/// Both types in words; a dim that has one value within the range of the planned program is that value.
fn types(source: &Type, planned: &Type, narrowed: &Symbols, graph: &Graph) -> [String; 2] {
    let words = |ty: &Type, symbols: &Symbols| {
        let dim = |d: &Dim| match d.bounds(symbols) {
            (low, high) if low == high => low.to_string(),
            _ => d.display(symbols).to_string(),
        };
        format!("{}[{}]", ty.dtype, ty.shape.iter().map(dim).collect::<Vec<_>>().join(", "))
    };
    [words(source, narrowed), words(planned, &graph.symbols)]
}

/// Checks that there is a bucket, and that the arenas have sizes that memory can hold.
pub fn whole(plan: &Plan, errors: &mut Vec<CheckError>) {
    if plan.buckets.is_empty() {
        errors.push(CheckError::BucketsMissing { expected: 1, found: 0 });
    }
    let Arenas { ordinary, symmetric } = plan.arenas;
    for (arena, found) in [(ArenaKind::Ordinary, ordinary), (ArenaKind::Symmetric, symmetric)] {
        if found > MAX_SIZE {
            errors.push(CheckError::ArenaTooLarge { arena, expected: MAX_SIZE, found });
        }
    }
}

/// Checks the fixed memory.
pub fn fixed(plan: &Plan, programs: &Programs, errors: &mut Vec<CheckError>) {
    for (i, f) in plan.fixed.iter().enumerate() {
        let end = f.offset.saturating_add(f.size);
        if end > plan.arenas.symmetric {
            let expected = plan.arenas.symmetric;
            errors.push(CheckError::FixedOutside { fixed: i, expected, found: end });
        }
        let expected = if matches!(f.role, Role::Landing { .. }) { LL128_LINE } else { ALIGN };
        if f.offset % expected != 0 {
            errors.push(CheckError::FixedMisaligned { fixed: i, expected, found: f.offset });
        }
        match &f.role {
            Role::Bound { input } if *input >= programs.source.inputs.len() => {
                let expected = programs.source.inputs.len();
                errors.push(CheckError::FixedInput { fixed: i, expected, found: *input });
            }
            Role::Landing { group, zone }
                if *zone > 1 || programs.groups.iter().all(|g| g.name != *group) =>
            {
                errors.push(CheckError::FixedZone { fixed: i, found: format!("{group}, zone {zone}") });
            }
            _ => {}
        }
        if let Some(first) = plan.fixed[..i].iter().position(|other| other.role == f.role) {
            errors.push(CheckError::FixedTwice { first, second: i });
        }
    }
    let mut by_offset: Vec<(usize, &Fixed)> =
        plan.fixed.iter().enumerate().filter(|(_, f)| f.size > 0).collect();
    by_offset.sort_by_key(|(i, f)| (f.offset, *i));
    for pair in by_offset.windows(2) {
        let ((first, a), (second, b)) = (pair[0], pair[1]);
        if b.offset < a.offset.saturating_add(a.size) {
            errors.push(CheckError::FixedOverlap { first, second });
        }
    }
}
