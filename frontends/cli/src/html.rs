//! The report of a plan as an HTML page: how collectives run, the memory over the steps, and a table of the steps.
//!
//! The page is one file, without scripts and without references to other files. All text from programs is escaped.

use std::collections::HashMap;
use std::fmt::{Display, Write};

use anyhow::Result;
use symmc::CheckedPlan;
use symmc::unstable::plan::{ArenaKind, Bucket, Buffer, ExitBarrier, Lane, MemoryRef, PeerReach};

use crate::dispatch_report;
use crate::planned_bucket::PlannedBucket;
use crate::report;
use crate::units::{format_bytes, format_count};

const STYLE_SHEET: &str = "body{font:14px/1.45 system-ui,sans-serif;margin:2em auto;max-width:72em;padding:0 1em;color:#222}\
table{border-collapse:collapse;margin:.6em 0}td,th{padding:.15em .8em .15em 0;text-align:left;border-bottom:1px solid #ddd}\
td.n{text-align:right}svg{width:100%;height:auto;background:#fafafa;border:1px solid #ddd}\
svg text{font:11px system-ui,sans-serif;fill:#444}rect{stroke:#fff;stroke-width:.3}\
rect.local{fill:#9db4c9}rect.read{fill:#e0a458}rect.written{fill:#c8553d}pre{white-space:pre-wrap}\
summary{cursor:pointer;margin:.6em 0}.key span{padding:0 .5em;margin-right:1em;color:#fff}";

/// The size of drawings, in units of the view box.
const DRAWING_WIDTH: f64 = 1000.0;
const DRAWING_HEIGHT: f64 = 220.0;

/// The most buffers in a drawing. Smaller ones are left out, with a count.
const MAX_DRAWN_BUFFERS: usize = 4000;

/// The most values that the tooltip of a buffer names.
const MAX_NAMED_VALUES: usize = 8;

/// The page without the estimated times of runs, which need a machine profile.
pub fn render_plan(plan: &CheckedPlan) -> Result<String> {
    render_plan_with_times(plan, None)
}

pub fn render_plan_with_times(plan: &CheckedPlan, times: Option<&report::EstimatedTimes>) -> Result<String> {
    let name = escape_html(&plan.source.name);
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{name}</title><style>{STYLE_SHEET}</style></head>\n\
         <body><h1>{name}</h1>\n<p>{}</p>\n",
        escape_html(&report::plan_line(plan))
    );
    for (b, bucket) in plan.buckets.iter().enumerate() {
        let planned = PlannedBucket::new(plan, bucket)?;
        writeln!(out, "<h2>{}</h2>", escape_html(&bucket.describe_range()))?;
        out.push_str("<h3>Collectives</h3>\n");
        out.push_str(&html_table(&report::collective_rows(plan, bucket, &planned)));
        if let Some(times) = times {
            let line = report::time_line(&times.chosen[b], times.plain[b]);
            writeln!(out, "<p>{}</p>", escape_html(line.trim()))?;
        }
        out.push_str("<h3>Memory</h3>\n");
        out.push_str(&html_table(&report::arena_rows(bucket)));
        let notes = report::arena_notes(plan, bucket)
            + &dispatch_report::dispatch_summary(&planned)
            + &report::copy_lines(bucket, &planned);
        writeln!(out, "<pre>{}</pre>", escape_html(&notes))?;
        let t = &bucket.totals;
        let arenas = [(ArenaKind::Ordinary, t.ordinary_peak), (ArenaKind::Symmetric, t.symmetric_peak)];
        for (arena, peak) in arenas {
            out.push_str(&arena_drawing(bucket, arena, peak));
        }
        out.push_str(&step_table(bucket, &planned));
    }
    let common_lines = report::common_lines(plan);
    if !common_lines.is_empty() {
        writeln!(out, "<pre>{}</pre>", escape_html(&common_lines))?;
    }
    out.push_str("</body></html>\n");
    Ok(out)
}

/// Escapes text for use within elements and attributes.
pub fn escape_html(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for ch in text.chars() {
        match ch {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            ch => out.push(ch),
        }
    }
    out
}

/// A table; the first row is the header.
fn html_table(rows: &[Vec<String>]) -> String {
    let [header, rows @ ..] = rows else { return String::new() };
    if rows.is_empty() {
        return "<p>none</p>\n".into();
    }
    let mut out = String::from("<table><tr>");
    out.extend(header.iter().map(|cell| format!("<th>{}</th>", escape_html(cell))));
    out.push_str("</tr>\n");
    for row in rows {
        let cell = |cell: &String| {
            let class = if cell.starts_with(|ch: char| ch.is_ascii_digit()) { " class=\"n\"" } else { "" };
            format!("<td{class}>{}</td>", escape_html(cell))
        };
        out.push_str("<tr>");
        out.extend(row.iter().map(cell));
        out.push_str("</tr>\n");
    }
    out + "</table>\n"
}

/// A drawing of the buffers of an arena: steps from left to right, offsets from bottom to top.
fn arena_drawing(bucket: &Bucket, arena: ArenaKind, peak: u64) -> String {
    let name = if arena == ArenaKind::Symmetric { "symmetric" } else { "ordinary" };
    let mut buffers: Vec<(usize, &Buffer)> =
        bucket.buffers.iter().enumerate().filter(|(_, b)| b.arena == arena).collect();
    if buffers.is_empty() {
        return format!("<p>The {name} arena has no buffers.</p>\n");
    }
    buffers.sort_by_key(|(_, buffer)| std::cmp::Reverse(buffer.size));
    let left_out = buffers.len().saturating_sub(MAX_DRAWN_BUFFERS);
    buffers.truncate(MAX_DRAWN_BUFFERS);
    let end = bucket.steps.len();
    let top = buffers.iter().map(|(_, b)| b.offset + b.size).max().unwrap_or(1).max(1);
    let x = |step: usize| step as f64 / end.max(1) as f64 * DRAWING_WIDTH;
    let y = |byte: u64| byte as f64 / top as f64 * DRAWING_HEIGHT;
    let mut out = format!(
        "<p>The {name} arena over {}: peak {}, in {}{}.</p>\n<svg viewBox=\"0 0 {DRAWING_WIDTH} {}\" role=\"img\">\n",
        format_count(end as u64, "step"),
        format_bytes(peak),
        format_count(bucket.buffers.iter().filter(|b| b.arena == arena).count() as u64, "buffer"),
        if left_out > 0 { format!("; the {left_out} smallest are not drawn") } else { String::new() },
        DRAWING_HEIGHT + 16.0
    );
    let values = values_by_buffer(bucket);
    for (index, buffer) in buffers {
        let values = values.get(&index).map_or(&[][..], Vec::as_slice);
        let (named, more) = values.split_at(values.len().min(MAX_NAMED_VALUES));
        let text = escape_html(&format!(
            "{}{}: {} at {}, steps {} to {}",
            named.join(", "),
            if more.is_empty() { "" } else { ", …" },
            format_bytes(buffer.size),
            buffer.offset,
            buffer.first,
            buffer.last
        ));
        let class = match buffer.reach {
            PeerReach::Local => "local",
            PeerReach::Read => "read",
            PeerReach::Written => "written",
        };
        for (first, last) in occupied_spans(buffer, end) {
            let (left, right) = (x(first), x(last + 1));
            let _ = writeln!(
                out,
                "<rect class=\"{class}\" x=\"{left:.2}\" y=\"{:.2}\" width=\"{:.2}\" height=\"{:.2}\"><title>{text}</title></rect>",
                DRAWING_HEIGHT - y(buffer.offset + buffer.size),
                (right - left).max(0.0),
                y(buffer.size),
            );
        }
    }
    let label = |x: f64, anchor: &str, text: &dyn Display| {
        format!("<text x=\"{x}\" y=\"{}\" text-anchor=\"{anchor}\">{text}</text>\n", DRAWING_HEIGHT + 12.0)
    };
    out.push_str(&label(0.0, "start", &"step 0"));
    out.push_str(&label(DRAWING_WIDTH / 2.0, "middle", &format_args!("height {}", format_bytes(top))));
    out.push_str(&label(DRAWING_WIDTH, "end", &format_args!("step {}", end.saturating_sub(1))));
    out.push_str("</svg>\n<p class=\"key\">Peers <span style=\"background:#9db4c9\">do not access</span>");
    out + "<span style=\"background:#e0a458\">read</span><span style=\"background:#c8553d\">write</span> it.</p>\n"
}

fn values_by_buffer(bucket: &Bucket) -> HashMap<usize, Vec<&str>> {
    let mut out: HashMap<usize, Vec<&str>> = HashMap::new();
    for (name, placement) in &bucket.places {
        if let MemoryRef::Buffer(index) = placement.memory {
            out.entry(index).or_default().push(name);
        }
    }
    out
}

/// The steps during which a buffer is occupied, as pairs of a first and a last step. A buffer that is kept for the next run
/// has two spans.
fn occupied_spans(buffer: &Buffer, end: usize) -> Vec<(usize, usize)> {
    if buffer.last < buffer.first {
        vec![(buffer.first, end.saturating_sub(1)), (0, buffer.last)]
    } else {
        vec![(buffer.first, buffer.last)]
    }
}

fn step_table(bucket: &Bucket, planned: &PlannedBucket<'_>) -> String {
    let mut rows =
        vec![["step", "node", "op", "lane", "waits for", "exit barrier"].map(str::to_string).to_vec()];
    for (number, step) in bucket.steps.iter().enumerate() {
        let waits: Vec<String> = step.waits.iter().map(ToString::to_string).collect();
        let lane = match step.lane {
            Lane::Compute => "compute",
            Lane::Comm => "communication",
        };
        let exit = match step.exit {
            Some(ExitBarrier::Kept) => "kept",
            Some(ExitBarrier::Dropped) => "dropped",
            None => "",
        };
        rows.push(vec![
            number.to_string(),
            format!("%{}", step.node),
            planned.op_names_of_step(number),
            lane.into(),
            waits.join(", "),
            exit.into(),
        ]);
    }
    let steps = format_count(bucket.steps.len() as u64, "step");
    format!("<details><summary>{steps}</summary>\n{}</details>\n", html_table(&rows))
}

#[cfg(test)]
mod tests {
    use symmc::{CompileConfig, Program};

    use super::*;

    /// Whether every tag that is opened is closed, in order.
    fn balanced(page: &str) -> bool {
        let mut open = Vec::new();
        for part in page.split('<').skip(1) {
            let Some((tag, _)) = part.split_once('>') else { return false };
            match tag.strip_prefix('/') {
                Some(name) => match open.pop() {
                    Some(last) if last == name => {}
                    _ => return false,
                },
                None => match tag.split_whitespace().next().unwrap_or("") {
                    "meta" | "!DOCTYPE" => {}
                    name => open.push(name.to_string()),
                },
            }
        }
        open.is_empty()
    }

    #[test]
    fn a_page_is_well_formed_and_shows_the_decisions() {
        let text = "program \"a<script>&b\" ranks 4\nsymbol n in 1..=64\ngroup @all world\narg %x: f32[n, 512]\n\
                    %a: f32[n, 512] = relu %x\n%y: f32[n, 512] = all_reduce %a op=sum group=@all\n\
                    %z: f32[n, 512] = add %y, %x\nreturn %z\n";
        let program = Program::from_text(text).unwrap();
        for machine in ["host", "h200x4"] {
            let config = CompileConfig::default().with_profile(symmc::machine_profile(machine).unwrap());
            let plan = symmc::compile(&program, &config).unwrap();
            let page = render_plan(&plan).unwrap();
            assert!(balanced(&page), "{page}");
            assert!(!page.contains("<script") && page.contains("a&lt;script&gt;&amp;b"), "{page}");
            let any = plan.buckets.iter().any(|bucket| !bucket.buffers.is_empty());
            assert_eq!(page.contains("<svg") && page.contains("<rect"), any, "{page}");
            assert!(any || machine == "h200x4", "the host stores intermediate values");
            for bucket in &plan.buckets {
                for decision in &bucket.decisions {
                    assert!(
                        page.contains(&decision.chosen)
                            && page.contains(&format!("%{}", decision.collective))
                    );
                }
                assert!(bucket.steps.iter().all(|step| page.contains(&format!("<td>%{}</td>", step.node))));
                let drawn = page.matches("<rect").count();
                assert!(drawn >= bucket.buffers.len(), "{drawn} of {}", bucket.buffers.len());
            }
        }
    }

    #[test]
    fn buffers_that_are_kept_for_the_next_run_are_drawn_twice() {
        let buffer = |first, last| Buffer {
            arena: ArenaKind::Ordinary,
            offset: 0,
            size: 64,
            first,
            last,
            reach: PeerReach::Local,
        };
        assert_eq!(occupied_spans(&buffer(2, 5), 8), [(2, 5)]);
        assert_eq!(occupied_spans(&buffer(6, 1), 8), [(6, 7), (0, 1)]);
    }
}
