//! Lengths of source files and functions, for a report. They are no limits: a function that reads straight down may be long.

/// The functions of a formatted source file and the number of their lines. A `match` counts as one line if none of its arms is
/// long, because it is a table.
pub fn function_lengths(text: &str) -> Vec<(&str, usize)> {
    const ARM: usize = 24;
    let indent = |line: &str| line.len() - line.trim_start().len();
    let lines: Vec<&str> = text.lines().collect();
    let closes = |at: usize, depth: usize| {
        (at..lines.len()).find(|&l| indent(lines[l]) == depth && lines[l].trim_start().starts_with('}'))
    };
    let mut functions = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let code = line.trim_start().trim_start_matches("pub ").trim_start_matches("pub(super) ");
        let code = code.trim_start_matches("pub(crate) ").trim_start_matches("unsafe ");
        let Some(name) = code.strip_prefix("fn ").filter(|_| !line.ends_with(['}', ';'])) else { continue };
        let Some(end) = closes(at, indent(line)) else { continue };
        let (mut count, mut l) = (0, at);
        while l <= end {
            count += 1;
            let arms = lines[l].ends_with("match") || lines[l].contains("match ") && lines[l].ends_with('{');
            if let Some(close) = closes(l + 1, indent(lines[l])).filter(|_| arms) {
                let starts = (l + 1..close).filter(|&a| indent(lines[a]) == indent(lines[l]) + 4);
                let starts: Vec<usize> = starts.chain([close]).collect();
                if starts.windows(2).all(|w| w[1] - w[0] < ARM) {
                    l = close;
                }
            }
            l += 1;
        }
        functions.push((name.split(['(', '<']).next().unwrap_or(name), count));
    }
    functions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_of_functions_are_counted() {
        let arms = "        1 => 2,\n".repeat(70);
        let table = format!("fn table(x: u8) -> u8 {{\n    match x {{\n{arms}    }}\n}}\n");
        let long = format!("pub fn long() {{\n{}}}\n", "    step();\n".repeat(70));
        let arm = format!("        1 => {{\n{}        }}\n", "            step();\n".repeat(70));
        let nested = format!("fn nested<T>(x: u8) {{\n    match x {{\n{arm}    }}\n}}\n");
        let text = [table, long, nested].join("\n");
        assert_eq!(function_lengths(&text), [("table", 3), ("long", 72), ("nested", 76)]);
    }
}
