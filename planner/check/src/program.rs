//! The rules for the plan as a whole: its programs, their ranks, groups and signatures, and its fixed memory.

use std::collections::{HashMap, HashSet};
use std::ops::Deref;

use symmc_ir::entity::Entity;
use symmc_ir::verify::MAX_RANKS;
use symmc_ir::{CustomOp, Graph, GroupId, GroupMembers, SymbolTable, TensorType};
use symmc_plan::{
    ArenaKind, ArenaSizes, Bucket, MAX_SIZE, MAX_TEXT_BYTES, ParsedProgram, Plan, ProgramReadError, VERSION,
    sha256_hex,
};
use symmc_support::parallel;

use super::error::{CheckError, ProgramId};
use super::findings::Findings;
use super::fixed_memory::FixedMemoryIndex;

/// The approximate number of bytes per line of a program's text. It only estimates work for threads.
const BYTES_OF_LINE: usize = 64;

pub struct PlannedProgram {
    read: ParsedProgram,
    /// For each group of the program, its index in [`PlanPrograms::groups`].
    groups: Vec<usize>,
}

impl PlannedProgram {
    pub fn group_index(&self, group: GroupId) -> usize {
        self.groups.get(group.index()).copied().unwrap_or(0)
    }

    pub fn into_read(self) -> ParsedProgram {
        self.read
    }
}

impl Deref for PlannedProgram {
    type Target = ParsedProgram;

    fn deref(&self) -> &ParsedProgram {
        &self.read
    }
}

/// A group of ranks. All programs that have a group of this name agree on its members.
pub struct PlanGroup {
    pub name: String,
    pub members: GroupMembers,
    /// The number of ranks in each cell.
    pub size: u32,
}

pub struct PlanPrograms {
    pub source: Graph,
    pub planned: Vec<PlannedProgram>,
    /// All groups of all programs, each name once.
    pub groups: Vec<PlanGroup>,
    group_of: HashMap<String, usize>,
    pub fixed: FixedMemoryIndex,
}

/// Reads the programs of a plan. Fails with findings about the version, the number of ranks, a text or its
/// signature. The rest of the plan has no meaning in these cases.
pub fn read(plan: &Plan) -> Result<PlanPrograms, Findings> {
    let mut errors = Findings::default();
    if plan.version != VERSION {
        errors.push(CheckError::Version { expected: VERSION, found: plan.version });
        return Err(errors);
    }
    if !(1..=MAX_RANKS).contains(&plan.ranks) {
        errors.push(CheckError::Ranks { expected: MAX_RANKS, found: plan.ranks });
        return Err(errors);
    }
    check_unused_programs(plan, &mut errors);
    check_text_lengths(plan, &mut errors);
    if !errors.is_empty() {
        return Err(errors);
    }
    let hash = sha256_hex(plan.source.text.as_bytes());
    if hash != plan.source.hash {
        errors.push(CheckError::SourceHash { expected: plan.source.hash.clone(), found: hash });
    }
    let Some((source, planned)) = parse_programs(plan, &mut errors) else { return Err(errors) };
    if source.ranks.is_some_and(|r| r != plan.ranks) {
        errors.push(CheckError::ProgramRanks {
            program: ProgramId::Source,
            expected: plan.ranks,
            found: source.ranks,
        });
    }
    if source.name != plan.source.name {
        let expected = source.name.clone();
        let name = plan.source.name.clone();
        errors.push(CheckError::SourceName { expected, found: name });
    }
    for (p, ParsedProgram { graph, .. }) in planned.iter().enumerate() {
        let program = ProgramId::Planned(p);
        if graph.ranks != Some(plan.ranks) {
            errors.push(CheckError::ProgramRanks { program, expected: plan.ranks, found: graph.ranks });
        }
        check_signature(&source, graph, program, &mut errors);
        check_customs(&source, graph, program, &mut errors);
    }
    let (groups, group_of, of_program) = collect_groups(&source, &planned, plan.ranks, &mut errors);
    if !errors.is_empty() {
        return Err(errors);
    }
    let planned = planned.into_iter().zip(of_program).map(|(read, groups)| PlannedProgram { read, groups });
    let fixed = FixedMemoryIndex::new(plan);
    Ok(PlanPrograms { source, planned: planned.collect(), groups, group_of, fixed })
}

/// Parses the texts of the source and of the planned programs. `None` if a text is not a valid program.
fn parse_programs(plan: &Plan, errors: &mut Findings) -> Option<(Graph, Vec<ParsedProgram>)> {
    let planned = plan.programs.iter().enumerate().map(|(p, text)| (ProgramId::Planned(p), text));
    let texts: Vec<_> = [(ProgramId::Source, &plan.source.text)].into_iter().chain(planned).collect();
    let lines = texts.iter().map(|(_, text)| text.len() / BYTES_OF_LINE).sum();
    let mut read = Vec::with_capacity(texts.len());
    let results = parallel::map(texts, lines, |(program, text)| (program, ParsedProgram::parse(text)));
    for (program, result) in results {
        match result {
            Ok(program) => read.push(program),
            Err(ProgramReadError::Text(error)) => {
                errors.push(CheckError::Text { program, error: error.to_string() });
            }
            Err(ProgramReadError::Invalid(violations)) => {
                let invalid =
                    violations.iter().map(|v| CheckError::Invalid { program, violation: v.to_string() });
                errors.extend(invalid);
            }
        }
    }
    if read.len() <= plan.programs.len() {
        return None;
    }
    let planned = read.split_off(1);
    Some((read.pop()?.graph, planned))
}

/// Checks that every program is used by a bucket.
fn check_unused_programs(plan: &Plan, errors: &mut Findings) {
    if plan.buckets.is_empty() {
        return;
    }
    let used: HashSet<usize> = plan.buckets.iter().map(|b| b.program).collect();
    let unused = (0..plan.programs.len()).filter(|program| !used.contains(program));
    errors.extend(unused.map(|program| CheckError::ProgramUnused { program }));
}

/// Checks the lengths of texts that are written for people and have no meaning for the plan.
fn check_text_lengths(plan: &Plan, errors: &mut Findings) {
    let mut check_length = |what: &dyn Fn() -> String, text: &str| {
        if text.len() > MAX_TEXT_BYTES {
            let description = what();
            errors.push(CheckError::TextTooLong {
                what: description,
                expected: MAX_TEXT_BYTES,
                found: text.len(),
            });
        }
    };
    check_length(&|| "the name of the machine".into(), &plan.machine);
    for r in &plan.replacements {
        for text in [&r.collective, &r.rule, &r.what].into_iter().chain(&r.by) {
            check_length(&|| format!("the replacement of collective %{}", r.collective), text);
        }
    }
    for (b, Bucket { places, decisions, .. }) in plan.buckets.iter().enumerate() {
        for (value, placement) in places.iter() {
            check_length(&|| format!("the reason for the place of %{value} in bucket {b}"), &placement.why);
        }
        for d in decisions {
            let names = d.alternatives.iter().map(|a| &a.name).chain(d.rules.iter().map(|r| &r.name));
            names.for_each(|name| {
                check_length(&|| format!("a name in the decision for %{} in bucket {b}", d.collective), name)
            });
        }
    }
}

/// Checks that each custom op is declared as in the source: same group, same symmetric operands and results.
fn check_customs(source: &Graph, planned: &Graph, program: ProgramId, errors: &mut Findings) {
    let of_source: HashMap<&str, &CustomOp> = source.customs.values().map(|c| (c.name.as_str(), c)).collect();
    for custom in planned.customs.values() {
        let mut differs = |what, expected: String, found: String| {
            if expected != found {
                let custom = custom.name.clone();
                errors.push(CheckError::CustomDeclaration { program, custom, what, expected, found });
            }
        };
        let Some(expected) = of_source.get(custom.name.as_str()) else {
            differs("the declaration", "absent".into(), "present".into());
            continue;
        };
        differs("the group", describe_group(source, expected), describe_group(planned, custom));
        differs(
            "the list of symmetric operands",
            format!("{:?}", expected.symmetric_operands),
            format!("{:?}", custom.symmetric_operands),
        );
        differs(
            "the list of symmetric results",
            format!("{:?}", expected.symmetric_results),
            format!("{:?}", custom.symmetric_results),
        );
    }
}

fn describe_group(graph: &Graph, custom: &CustomOp) -> String {
    match custom.group.and_then(|g| graph.groups.get(g)) {
        Some(group) => format!("{:?}", group.name),
        None => "none".to_string(),
    }
}

/// Collects the groups of all programs, the index of each by name, and for each planned program the indices of
/// its groups. Groups of one name must have the same cells in all programs, the source included.
fn collect_groups(
    source: &Graph,
    planned: &[ParsedProgram],
    ranks: u32,
    errors: &mut Findings,
) -> (Vec<PlanGroup>, HashMap<String, usize>, Vec<Vec<usize>>) {
    let mut groups: Vec<PlanGroup> = Vec::new();
    let mut first: Vec<ProgramId> = Vec::new();
    let mut index: HashMap<String, usize> = HashMap::new();
    let mut of_program = Vec::with_capacity(planned.len());
    let graphs = planned.iter().enumerate().map(|(p, read)| (ProgramId::Planned(p), &read.graph));
    for (program, graph) in [(ProgramId::Source, source)].into_iter().chain(graphs) {
        let mut of_group = Vec::with_capacity(graph.groups.len());
        for (id, group) in graph.groups.iter() {
            let position = *index.entry(group.name.clone()).or_insert(groups.len());
            match groups.get(position) {
                None => {
                    let size = graph.group_size(id).unwrap_or(ranks);
                    groups.push(PlanGroup { name: group.name.clone(), members: group.members.clone(), size });
                    first.push(program);
                }
                Some(existing) if !same_cells(&existing.members, &group.members, ranks) => {
                    let group = group.name.clone();
                    let other_program = first[position];
                    errors.push(CheckError::GroupMembers { program, group, other: other_program });
                }
                Some(_) => {}
            }
            of_group.push(position);
        }
        if program != ProgramId::Source {
            of_program.push(of_group);
        }
    }
    (groups, index, of_program)
}

/// Whether two groups have the same cells in the same order. The group of all ranks may be written as `world` or
/// as one cell that lists all ranks.
fn same_cells(a: &GroupMembers, b: &GroupMembers, ranks: u32) -> bool {
    a == b
        || [a, b].into_iter().all(|members| match members {
            GroupMembers::World => true,
            GroupMembers::Cells(cells) => matches!(&cells[..], [cell] if cell.iter().copied().eq(0..ranks)),
        })
}

/// Checks that a planned program has the inputs and outputs of the source.
fn check_signature(source: &Graph, planned: &Graph, program: ProgramId, errors: &mut Findings) {
    let mut differ = |what: String, expected: String, found: String| {
        if expected != found {
            errors.push(CheckError::Signature { program, what, expected, found });
        }
    };
    differ("the number of inputs".into(), source.inputs.len().to_string(), planned.inputs.len().to_string());
    differ(
        "the number of outputs".into(),
        source.outputs.len().to_string(),
        planned.outputs.len().to_string(),
    );
    // Each run binds the symbols of the source. A program without one of them would compute the same at all its values.
    differ("the symbols".into(), list_symbols(source), list_symbols(planned));
    let narrowed = narrow_symbols(source, planned);
    for (i, (s, p)) in source.inputs.values().zip(planned.inputs.values()).enumerate() {
        differ(format!("the kind of input {i}"), format!("{:?}", s.kind), format!("{:?}", p.kind));
        differ(format!("the source of input {i}"), format!("{:?}", s.source), format!("{:?}", p.source));
        let [expected, found] = describe_types(source.ty(s.value), planned.ty(p.value), &narrowed, planned);
        differ(format!("the type of input {i}"), expected, found);
        if s.data != p.data {
            differ(format!("the data of input {i}"), "the same".into(), "different".into());
        }
    }
    for (k, (s, p)) in source.outputs.iter().zip(&planned.outputs).enumerate() {
        differ(format!("the kind of output {k}"), format!("{:?}", s.kind), format!("{:?}", p.kind));
        let [expected, found] = describe_types(source.ty(s.value), planned.ty(p.value), &narrowed, planned);
        differ(format!("the type of output {k}"), expected, found);
    }
}

fn list_symbols(graph: &Graph) -> String {
    let mut names: Vec<String> = graph.symbols.values().map(|s| s.name.clone()).collect();
    names.sort_unstable();
    names.join(", ")
}

/// The symbols of the source, with the ranges that the planned program gives to them.
fn narrow_symbols(source: &Graph, planned: &Graph) -> SymbolTable {
    let mut symbols = source.symbols.clone();
    for symbol in symbols.values_mut() {
        if let Some(p) = planned.symbols.values().find(|p| p.name == symbol.name) {
            (symbol.min, symbol.max) = (p.min, p.max);
        }
    }
    symbols
}

/// Describes both types for comparison. A dim that has only one value within the ranges of the planned program
/// is written as that value.
fn describe_types(
    source: &TensorType,
    planned: &TensorType,
    narrowed: &SymbolTable,
    graph: &Graph,
) -> [String; 2] {
    [describe_type(source, narrowed), describe_type(planned, &graph.symbols)]
}

fn describe_type(ty: &TensorType, symbols: &SymbolTable) -> String {
    let dims = ty.shape.iter().map(|dim| match dim.bounds(symbols) {
        (low, high) if low == high => low.to_string(),
        _ => dim.display(symbols).to_string(),
    });
    format!("{}[{}]", ty.dtype, dims.collect::<Vec<_>>().join(", "))
}

/// Checks that the plan has a bucket, that its arenas are no larger than [`MAX_SIZE`], and its fixed memory.
pub fn check_plan_level(plan: &Plan, programs: &PlanPrograms, errors: &mut Findings) {
    if plan.buckets.is_empty() {
        errors.push(CheckError::BucketsMissing { expected: 1, found: 0 });
    }
    let ArenaSizes { ordinary, symmetric } = plan.arenas;
    for (arena, bytes) in [(ArenaKind::Ordinary, ordinary), (ArenaKind::Symmetric, symmetric)] {
        if bytes > MAX_SIZE {
            errors.push(CheckError::ArenaTooLarge { arena, expected: MAX_SIZE, found: bytes });
        }
    }
    let inputs = programs.source.inputs.len();
    super::fixed_memory::check(
        plan,
        &programs.fixed,
        inputs,
        |name| programs.group_of.contains_key(name),
        errors,
    );
}
