//! Splits the text form into tokens.
//!
//! Line ends are tokens because they end statements, except within brackets and after a comma. Tokens borrow
//! from the text, except strings with escapes.

use std::borrow::Cow;

use super::error::{ParseFailure, quote};

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Token<'a> {
    /// Letters, digits, `_` and `.`, not starting with a digit or a dot.
    Ident(&'a str),
    /// `%name`.
    Value(Cow<'a, str>),
    /// `@name`.
    Group(Cow<'a, str>),
    /// A string literal, unescaped.
    String(Cow<'a, str>),
    /// Decimal digits.
    Integer(&'a str),
    /// Digits with a point or an exponent.
    Float(&'a str),
    Mark(&'static str),
    /// The end of a line that ends a statement.
    Newline,
    End,
}

impl Token<'_> {
    pub fn describe(&self) -> String {
        match self {
            Token::Ident(s) | Token::Integer(s) | Token::Float(s) => quote(s),
            Token::Value(s) => quote(&format!("%{s}")),
            Token::Group(s) => quote(&format!("@{s}")),
            Token::String(s) => format!("the string {}", quote(s)),
            Token::Mark(s) => format!("`{s}`"),
            Token::Newline => "the end of the line".into(),
            Token::End => "the end of the text".into(),
        }
    }
}

/// The punctuation that this text starts with.
fn match_punctuation(text: &[u8]) -> Option<&'static str> {
    Some(match text {
        [b'[', ..] => "[",
        [b']', ..] => "]",
        [b'(', ..] => "(",
        [b')', ..] => ")",
        [b'{', ..] => "{",
        [b'}', ..] => "}",
        [b',', ..] => ",",
        [b':', ..] => ":",
        [b'=', ..] => "=",
        [b'+', ..] => "+",
        [b'*', ..] => "*",
        [b'?', ..] => "?",
        [b'-', b'>', ..] => "->",
        [b'-', ..] => "-",
        [b'.', b'.', b'=', ..] => "..=",
        _ => return None,
    })
}

/// A position in the text, and the state that decides whether a line end counts.
pub(super) struct Lexer<'a> {
    text: &'a str,
    at: usize,
    /// The number of open brackets.
    depth: usize,
    /// Whether the last token continues the statement on the next line.
    goes_on: bool,
}

impl<'a> Lexer<'a> {
    pub fn new(text: &'a str) -> Self {
        Lexer { text, at: 0, depth: 0, goes_on: true }
    }

    /// The next token, and the byte position where it starts.
    pub fn next(&mut self) -> Result<(Token<'a>, usize), ParseFailure> {
        loop {
            self.skip_blank();
            let start = self.at;
            let token = self.read_token()?;
            match token {
                Token::Newline if self.depth > 0 || self.goes_on => continue,
                Token::Mark("[" | "(") => self.depth += 1,
                Token::Mark("]" | ")") => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
            self.goes_on = matches!(token, Token::Newline | Token::Mark(","));
            return Ok((token, start));
        }
    }

    /// Skips spaces and a comment.
    fn skip_blank(&mut self) {
        let remaining = &self.text.as_bytes()[self.at..];
        let mut n = remaining.iter().take_while(|c| matches!(c, b' ' | b'\t' | b'\r')).count();
        if remaining[n..].starts_with(b"//") {
            n += remaining[n..].iter().take_while(|&&c| c != b'\n').count();
        }
        self.at += n;
    }

    fn read_token(&mut self) -> Result<Token<'a>, ParseFailure> {
        let start = self.at;
        let Some(&first) = self.text.as_bytes().get(start) else { return Ok(Token::End) };
        match first {
            b'\n' => {
                self.at += 1;
                Ok(Token::Newline)
            }
            b'%' => self.read_sigiled("%").map(Token::Value),
            b'@' => self.read_sigiled("@").map(Token::Group),
            b'"' => self.read_string().map(Token::String),
            b'0'..=b'9' => Ok(self.read_number()),
            c if c.is_ascii_alphabetic() || c == b'_' => Ok(Token::Ident(self.read_word())),
            _ => match match_punctuation(&self.text.as_bytes()[start..]) {
                Some(mark) => {
                    self.at += mark.len();
                    Ok(Token::Mark(mark))
                }
                None => {
                    let character = self.text[start..].chars().next().unwrap_or_default();
                    Err(ParseFailure::new(start, format!("unexpected character {character:?}")))
                }
            },
        }
    }

    /// Letters, digits, `_` and `.`.
    fn read_word(&mut self) -> &'a str {
        let remaining = &self.text[self.at..];
        let word = remaining.bytes().take_while(|c| c.is_ascii_alphanumeric() || matches!(c, b'_' | b'.'));
        let length = word.count();
        self.at += length;
        &remaining[..length]
    }

    fn read_sigiled(&mut self, sigil: &str) -> Result<Cow<'a, str>, ParseFailure> {
        let start = self.at;
        self.at += 1;
        if self.text.as_bytes().get(self.at) == Some(&b'"') {
            return self.read_string();
        }
        match self.read_word() {
            "" => Err(ParseFailure::new(start, format!("expected a name after `{sigil}`"))),
            name => Ok(Cow::Borrowed(name)),
        }
    }

    fn read_number(&mut self) -> Token<'a> {
        let start = self.at;
        let bytes = self.text.as_bytes();
        let digits = |from: usize| bytes[from..].iter().take_while(|c| c.is_ascii_digit()).count();
        self.at += digits(start);
        let mut is_float = false;
        if bytes.get(self.at) == Some(&b'.') && digits(self.at + 1) > 0 {
            self.at += 1 + digits(self.at + 1);
            is_float = true;
        }
        if matches!(bytes.get(self.at), Some(b'e' | b'E')) {
            let sign = usize::from(matches!(bytes.get(self.at + 1), Some(b'+' | b'-')));
            let n = digits(self.at + 1 + sign);
            if n > 0 {
                self.at += 1 + sign + n;
                is_float = true;
            }
        }
        let text = &self.text[start..self.at];
        if is_float { Token::Float(text) } else { Token::Integer(text) }
    }

    fn read_string(&mut self) -> Result<Cow<'a, str>, ParseFailure> {
        let start = self.at;
        let after_quote = &self.text[start + 1..];
        let plain = after_quote.bytes().take_while(|c| !matches!(c, b'"' | b'\\' | b'\n')).count();
        if after_quote.as_bytes().get(plain) == Some(&b'"') {
            self.at = start + plain + 2;
            return Ok(Cow::Borrowed(&after_quote[..plain]));
        }
        let mut out = after_quote[..plain].to_string();
        let mut chars = after_quote[plain..].char_indices();
        while let Some((i, c)) = chars.next() {
            match c {
                '"' => {
                    self.at = start + 1 + plain + i + 1;
                    return Ok(Cow::Owned(out));
                }
                '\n' => break,
                '\\' => {
                    let escape_position = start + 1 + plain + i;
                    out.push(decode_escape(&mut chars).ok_or_else(|| {
                        ParseFailure::new(
                            escape_position,
                            r#"expected one of the escapes \", \\, \n, \r, \t and \u{hex}"#,
                        )
                    })?);
                }
                c => out.push(c),
            }
        }
        Err(ParseFailure::new(start, "the string does not end on its line"))
    }
}

/// The character of an escape, after its backslash.
fn decode_escape(chars: &mut std::str::CharIndices<'_>) -> Option<char> {
    Some(match chars.next()?.1 {
        '"' => '"',
        '\\' => '\\',
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        'u' => {
            (chars.next()?.1 == '{').then_some(())?;
            let mut code = 0u32;
            for digits in 0.. {
                match chars.next()?.1 {
                    '}' if digits > 0 => break,
                    c if digits < 6 => code = code * 16 + c.to_digit(16)?,
                    _ => return None,
                }
            }
            char::from_u32(code)?
        }
        _ => return None,
    })
}
