//! Which builtins a policy may call: pure ones whose cost their arguments bound.
//!
//! The engine's timer looks at the clock between instructions, never inside one, so a builtin
//! that can run for seconds on small arguments would outlive the decision deadline; and one that
//! is not a function of its arguments would let two nodes decide differently. The list names what
//! is allowed: what a later engine adds is refused until someone has looked at it.

use regorus::unstable::{BUILTINS, TokenKind};

use super::lexer;
use super::lexer::Token;
use super::{Error, Source};

/// Allowed builtins. `docs/guide/policy.md` shows the list to policy authors.
const ALLOWED: &[&str] = &[
    "__builtin_sets.intersection", // what `&` and `|` compile to
    "__builtin_sets.union",
    "abs",
    "array.concat",
    "array.reverse",
    "array.slice",
    "base64.decode",
    "base64.encode",
    "base64.is_valid",
    "base64url.decode",
    "base64url.encode",
    "base64url.encode_no_pad",
    "bits.and",
    "bits.negate",
    "bits.or",
    "bits.rsh",
    "bits.xor",
    "ceil",
    "concat",
    "contains",
    "count",
    "endswith",
    "floor",
    "format_int",
    "glob.match",
    "glob.quote_meta",
    "hex.decode",
    "hex.encode",
    "indexof",
    "indexof_n",
    "intersection",
    "is_array",
    "is_boolean",
    "is_null",
    "is_number",
    "is_object",
    "is_set",
    "is_string",
    "json.filter",
    "json.is_valid",
    "json.marshal",
    "json.remove",
    "json.unmarshal",
    "lower",
    "max",
    "min",
    "object.filter",
    "object.get",
    "object.keys",
    "object.remove",
    "object.subset",
    "object.union",
    "object.union_n",
    "regex.find_n",
    "regex.is_valid",
    "regex.match",
    "regex.replace",
    "regex.split",
    "replace",
    "round",
    "semver.compare",
    "semver.is_valid",
    "sort",
    "split",
    "sprintf", // with a literal format and no width, see below
    "startswith",
    "strings.any_prefix_match",
    "strings.any_suffix_match",
    "strings.count",
    "strings.reverse",
    "substring",
    "sum",
    "time.add_date",
    "time.clock",
    "time.date",
    "time.diff",
    "time.format",
    "time.parse_duration_ns",
    "time.parse_ns",
    "time.parse_rfc3339_ns",
    "time.weekday",
    "to_number",
    "trim",
    "trim_left",
    "trim_prefix",
    "trim_right",
    "trim_space",
    "trim_suffix",
    "type_name",
    "union",
    "units.parse",
    "units.parse_bytes",
    "upper",
];

/// Namespaces of builtins that this build leaves out, named so that the message can say why.
const LEFT_OUT: &[&str] =
    &["crypto.", "graph.", "graphql.", "http.", "io.jwt.", "net.", "opa.", "rego.", "uuid."];

const NOT_ALLOWED: &str =
    "only pure builtins of bounded cost may be called (docs/guide/policy.md lists them)";
const WIDTH: &str = "its format must be written in place and use only %s, %d, %v and %%, without width";
const BY_BRACKETS: &str = "functions are called by their plain names";

/// Whether a policy may call this builtin.
pub(super) fn is_allowed(name: &str) -> bool {
    ALLOWED.contains(&name)
}

/// Finds a refused builtin by its tokens, before anything is parsed.
pub(super) fn scan(source: &Source) -> Result<(), Error> {
    let tokens = lexer::of(source)?;
    for (at, token) in tokens.iter().enumerate().filter(|(_, token)| token.is_symbol("(")) {
        let (before, after) = tokens.split_at(at);
        let refused = |name: &str, rule: &str| {
            Err(Error::Builtin {
                path: source.path.clone(),
                line: token.line,
                name: name.to_owned(),
                rule: rule.to_owned(),
            })
        };
        if before.last().is_some_and(|last| last.is_symbol("]") && last.end == token.start) {
            return refused("a call by brackets", BY_BRACKETS);
        }
        let name = lexer::dotted_name(before).join(".");
        if is_builtin(&name) && !is_allowed(&name) {
            return refused(&name, NOT_ALLOWED);
        }
        if name == "sprintf" && !has_plain_format(after) {
            return refused(&name, WIDTH);
        }
    }
    Ok(())
}

fn is_builtin(name: &str) -> bool {
    // `print` is the one builtin that the engine keeps outside its table.
    name == "print" || BUILTINS.contains_key(name) || LEFT_OUT.iter().any(|prefix| name.starts_with(prefix))
}

/// Whether the tokens after `sprintf` are `(`, a literal format without width, and a comma. A
/// width makes one call write as many bytes as the number says.
fn has_plain_format(call: &[Token]) -> bool {
    let [_, format, comma, ..] = call else { return false };
    matches!(format.kind, TokenKind::String | TokenKind::RawString)
        && comma.is_symbol(",")
        && !format.text.contains("\\u") // an escape could hide a percent sign
        && format.text.replace("%%", "").split('%').skip(1).all(|rest| rest.starts_with(['s', 'd', 'v']))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan_rule(body: &str) -> Result<(), Error> {
        let text = format!("package p\n\nx := y if {{\n\t{body}\n}}\n");
        scan(&Source { path: "p.rego".to_owned(), text })
    }

    #[test]
    fn names_the_builtin_the_file_and_the_line() {
        let error = scan_rule("y := time.now_ns()").expect_err("impure");
        assert!(error.to_string().starts_with("p.rego:4: time.now_ns is refused: "), "{error}");
    }

    #[test]
    fn refuses_builtins_that_are_impure_or_outlive_the_timer() {
        for body in [
            "y := rand.intn(\"a\", 3)",
            "y := uuid.rfc4122(\"a\")",
            "y := http.send({})",
            "y := opa.runtime()",
            "y := numbers.range(1, 20000000)",
            "y := numbers.range_step(1, 20000000, 1)",
            "y := bits.lsh(1, 4000000000)",
            "trace(\"x\")",
            "print(\"x\")",
            "y := time . now_ns ( )",
            "y := time.\n\tnow_ns()",
            "y := time[\"now_ns\"]()",
            "y := io.jwt.decode(\"x\")",
        ] {
            assert!(matches!(scan_rule(body), Err(Error::Builtin { .. })), "{body}");
        }
    }

    #[test]
    fn refuses_a_format_with_a_width_or_one_that_is_not_written_in_place() {
        for body in [
            r#"y := sprintf("%2000000000d", [1])"#,
            r#"y := sprintf("%*d", [2000000000, 1])"#,
            r#"y := sprintf("%.9999s", ["a"])"#,
            r#"y := sprintf("\u00252000000000d", [1])"#,
            r#"y := sprintf("%%%9d", [1])"#,
            "y := sprintf(`%9d`, [1])",
            "y := sprintf(input.format, [1])",
            r#"y := sprintf(concat("", ["%", "9d"]), [1])"#,
        ] {
            assert!(matches!(scan_rule(body), Err(Error::Builtin { .. })), "{body}");
        }
        assert_eq!(scan_rule(r#"y := sprintf("%s of %d is 100%% %v", ["a", 1, {}])"#), Ok(()));
    }

    #[test]
    fn leaves_a_policy_s_own_functions_alone() {
        for body in
            ["y := f(1)", "y := data.lib.range(1)", "y := count([1])", "not (input.a)", "some y in (a | b)"]
        {
            assert_eq!(scan_rule(body), Ok(()), "{body}");
        }
    }

    #[test]
    fn a_builtin_named_in_a_text_or_comment_is_no_call() {
        assert_eq!(scan_rule("y := \"time.now_ns()\" # http.send({})"), Ok(()));
    }
}
