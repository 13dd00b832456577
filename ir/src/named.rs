//! Enums whose variants have names, in the text form and elsewhere.

/// Declares a fieldless enum with the name of each variant.
#[doc(hidden)]
#[macro_export]
macro_rules! named_enum {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $text:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        #[allow(missing_docs)]
        pub enum $name { $($(#[$vdoc])* $variant),* }

        impl $name {
            /// Every one, in order of declaration.
            pub const ALL: &'static [$name] = &[$($name::$variant),*];
            /// The name, as in the text form.
            pub fn name(self) -> &'static str {
                match self { $($name::$variant => $text),* }
            }
            /// The one of this name.
            pub fn from_name(name: &str) -> Option<Self> {
                match name { $($text => Some($name::$variant),)* _ => None }
            }
            /// The names of all, for who says another.
            pub fn names() -> String {
                [$($text),*].join(", ")
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}
