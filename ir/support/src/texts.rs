//! Texts for people of bounded length. They may quote names and expressions, which have no limit.

/// The text, or its beginning and its end with the number of omitted bytes, in at most `max_bytes` bytes, of which
/// the count takes up to 40.
pub fn shorten_middle(text: &str, max_bytes: usize) -> String {
    if text.len() <= max_bytes {
        return text.to_string();
    }
    let end_bytes = max_bytes.saturating_sub(40) / 2;
    let is_boundary = |&index: &usize| text.is_char_boundary(index);
    let head = (0..=end_bytes).rev().find(is_boundary).unwrap_or(0);
    let tail = (text.len() - end_bytes..text.len()).find(is_boundary).unwrap_or(text.len());
    format!("{}… ({} more bytes) …{}", &text[..head], tail - head, &text[tail..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_keep_both_ends() {
        for length in [0, 1, 100, 101, 1 << 20] {
            for max_bytes in [0, 40, 64, 100, 4096] {
                let text: String = "aé→".chars().cycle().take(length).collect();
                let short = shorten_middle(&text, max_bytes);
                assert!(short.len() <= max_bytes.max(40), "{length} {max_bytes}: {}", short.len());
                assert_eq!(short == text, text.len() <= max_bytes, "{length} {max_bytes}");
                assert_eq!(text.starts_with('a'), short.starts_with(['a', '…']) && length > 0);
            }
        }
    }
}
