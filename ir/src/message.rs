//! Messages for people. They quote names, expressions and lines of untrusted files, and go to terminals.
//! [`escape_message`] escapes control characters and limits the length. Every message passes through it: errors
//! of the API when they are displayed, and messages of the command. No other code escapes or truncates.

use std::fmt::Write;

/// The maximum length of a word, such as a name or a list without spaces, in characters.
const MAX_WORD_CHARS: usize = 1024;
/// The length of the kept beginning of a longer word.
const WORD_HEAD: usize = 256;
/// The maximum length of a line, in characters.
const MAX_LINE_CHARS: usize = 4096;
/// The length of the kept beginning and of the kept end of a longer line.
const LINE_HEAD: usize = 2048;
const LINE_TAIL: usize = 512;
/// The maximum number of lines, and the maximum length of the whole message in characters.
const MAX_LINES: usize = 200;
const MAX_MESSAGE_CHARS: usize = 32 << 10;

/// The message with control characters and direction marks escaped (`\u{1b}`), and with limited length and a
/// count of the omitted rest. Lines after the first are indented, so that a name cannot look like a separate
/// message. A short message without such characters is unchanged, and so is a message that was already escaped.
pub fn escape_message(message: &str) -> String {
    let mut out = String::with_capacity(message.len().min(MAX_MESSAGE_CHARS));
    let lines = message.split('\n').count();
    let mut characters = 0;
    for (index, line) in message.split('\n').enumerate() {
        let line = shorten_line(&escaped_line(line));
        characters += line.chars().count() + 2;
        let is_last = index + 1 == lines;
        if index > 0 && (characters > MAX_MESSAGE_CHARS || index + 1 >= MAX_LINES && !is_last) {
            let _ = write!(out, "\n  … ({} more lines)", group_digits(lines - index));
            return out;
        }
        if index > 0 {
            let indented = line.is_empty() || line.starts_with(' ');
            out.push_str(if indented { "\n" } else { "\n  " });
        }
        out.push_str(&line);
    }
    out
}

/// A line with all control characters and direction marks escaped.
pub fn escaped_line(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    line.chars().for_each(|c| push_escaped(&mut out, c));
    out
}

pub fn push_escaped(out: &mut String, c: char) {
    match c {
        '\t' => out.push(c),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        c if is_escaped(c) => {
            let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
        }
        c => out.push(c),
    }
}

/// Whether a character would act on a terminal, or change the display of other characters.
pub(crate) fn is_escaped(c: char) -> bool {
    c.is_control() || reorders_text(c)
}

/// Whether an invisible character changes the display of other characters: direction marks, and separators of
/// lines and paragraphs.
fn reorders_text(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// A line with long words truncated, then truncated in the middle if it is still long.
fn shorten_line(line: &str) -> String {
    if line.len() <= MAX_WORD_CHARS {
        return line.to_string();
    }
    let mut out = String::new();
    let mut remaining = line;
    while !remaining.is_empty() {
        let end = remaining.find(char::is_whitespace).unwrap_or(remaining.len());
        let (word, after) = remaining.split_at(end);
        push_word(&mut out, word);
        let gap = after.find(|c: char| !c.is_whitespace()).unwrap_or(after.len());
        out.push_str(&after[..gap]);
        remaining = &after[gap..];
    }
    let count = out.chars().count();
    if count <= MAX_LINE_CHARS {
        return out;
    }
    let head: String = out.chars().take(LINE_HEAD).collect();
    let tail: String = out.chars().skip(count - LINE_TAIL).collect();
    format!("{head}… ({} more characters) …{tail}", group_digits(count - LINE_HEAD - LINE_TAIL))
}

fn push_word(out: &mut String, word: &str) {
    let count = word.chars().count();
    if count <= MAX_WORD_CHARS {
        out.push_str(word);
        return;
    }
    out.extend(word.chars().take(WORD_HEAD));
    let _ = write!(out, "… ({} more characters)", group_digits(count - WORD_HEAD));
}

/// A list of names for a message, in order: at most `max_names` of them, and the number of further names.
pub fn list_names<T: AsRef<str>>(names: &[T], max_names: usize) -> String {
    let shown: Vec<&str> = names.iter().take(max_names).map(AsRef::as_ref).collect();
    match names.len().saturating_sub(max_names) {
        0 => shown.join(", "),
        more => format!("{}, … ({} more)", shown.join(", "), group_digits(more)),
    }
}

/// A number with a comma after every three digits.
fn group_digits(n: usize) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use symmc_support::random::SplitMix;

    /// Checks the properties of every escaped message.
    fn check(message: &str) -> String {
        let shown = escape_message(message);
        assert!(
            !shown.contains(|c: char| c != '\n' && c != '\t' && (c.is_control() || reorders_text(c))),
            "{message:?} became {shown:?}"
        );
        assert!(shown.chars().count() <= MAX_MESSAGE_CHARS + 64, "{} characters", shown.chars().count());
        assert!(shown.lines().count() <= MAX_LINES);
        assert!(shown.lines().all(|l| l.chars().count() <= MAX_LINE_CHARS + 2));
        assert!(shown.lines().skip(1).all(|l| l.is_empty() || l.starts_with(' ')), "{shown:?}");
        assert_eq!(escape_message(&shown), shown, "a second time");
        shown
    }

    #[test]
    fn plain_messages_stay_as_they_are() {
        let path = format!("/{}/model.symm: expected f32[4], found `größe`", "folder/".repeat(100));
        for text in ["", "%x: expected\ta tensor", "a:\n  - one\n\n  - two", &path] {
            assert_eq!(check(text), text);
        }
    }

    #[test]
    fn terminal_controls_are_escaped() {
        let osc = check("\u{1b}]0;title\u{7}\u{9b}31m\0\u{7f}\r\u{202e}x");
        assert_eq!(osc, r"\u{1b}]0;title\u{7}\u{9b}31m\u{0}\u{7f}\r\u{202e}x");
        assert_eq!(check("name\nerror: forged"), "name\n  error: forged");
    }

    #[test]
    fn long_messages_are_truncated_and_counted() {
        let name = "x".repeat(98_256);
        assert_eq!(
            check(&format!("the name {name} is taken")),
            format!("the name {}… (98,000 more characters) is taken", "x".repeat(256))
        );
        let list = check(&format!("expected one of {}found y", "name, ".repeat(20_000)));
        assert!(list.starts_with("expected one of name, ") && list.ends_with("found y"), "{list}");
        assert!(list.contains("more characters) …"));
        assert!(check(&"line\n".repeat(5000)).ends_with("  … (4,802 more lines)"));
        assert!(check(&format!("{}\n", "ab cd ".repeat(500)).repeat(150)).contains("more lines)"));
        assert_eq!(list_names(&["a", "b"], 2), "a, b");
        assert_eq!(list_names(&vec!["a"; 5002], 2), "a, a, … (5,000 more)");
    }

    #[test]
    fn any_text_is_made_printable() {
        let mut random = SplitMix(7);
        let pieces =
            ["a", " ", "\n", "\u{1b}[2J", "é", "\u{202e}", "…", ",", "\t", "\r\n", "\u{85}", "\u{2028}"];
        for _ in 0..400 {
            let mut text = String::new();
            for _ in 0..random.below(40) {
                text.push_str(
                    &pieces[random.below(pieces.len())].repeat(1 + random.below(3) * random.below(900)),
                );
            }
            check(&text);
        }
    }
}
