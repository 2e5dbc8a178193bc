//! Builtins that a policy may call: pure ones whose cost is bounded by their arguments.
//!
//! The engine checks its timer between instructions only, so a builtin that runs for seconds on small arguments would
//! exceed the decision deadline, for example one that reads the number `1e2000000000` from a text. One that is not a
//! function of its arguments would let two nodes decide differently.
//! This is an allow-list: a builtin that a later engine adds is refused until it is reviewed.

use regorus::unstable::BUILTINS;

use super::lexer;
use super::lexer::Lexeme;
use super::{Error, Source};

/// Allowed builtins; `docs/guide/policy.md` lists them for policy authors.
const ALLOWED: &[&str] = &[
    "__builtin_sets.intersection", // compiled from `&`
    "__builtin_sets.union",        // compiled from `|`
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
    "json.marshal",
    "json.remove",
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
    "time.diff",
    "time.parse_duration_ns",
    "time.parse_ns",
    "time.parse_rfc3339_ns",
    "trim",
    "trim_left",
    "trim_prefix",
    "trim_right",
    "trim_space",
    "trim_suffix",
    "type_name",
    "union",
    "upper",
];

/// Prefixes of builtins that this build excludes, listed so that the error can name them.
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

/// Finds a refused builtin in the lexemes, before the parser runs.
pub(super) fn scan(source: &Source) -> Result<(), Error> {
    let lexemes = lexer::of(source)?;
    for (at, lexeme) in lexemes.iter().enumerate().filter(|(_, lexeme)| lexeme.is_symbol("(")) {
        let (before, after) = lexemes.split_at(at);
        let refused = |name: &str, rule: &str| {
            Err(Error::Builtin {
                path: source.path.clone(),
                line: lexeme.line,
                name: name.to_owned(),
                rule: rule.to_owned(),
            })
        };
        let is_by_brackets = match before {
            [.., name, last] if last.is_symbol("]") => last.end == lexeme.start || name.is_string(),
            _ => false,
        };
        if is_by_brackets {
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
    // `print` is the one builtin outside the engine's table.
    name == "print" || BUILTINS.contains_key(name) || LEFT_OUT.iter().any(|prefix| name.starts_with(prefix))
}

/// Whether `sprintf` is followed by `(`, a literal format without width, and a comma. A width would make one call
/// write as many bytes as the number states.
fn has_plain_format(call: &[Lexeme]) -> bool {
    let [_, format, comma, ..] = call else { return false };
    format.is_string()
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
    fn refusal_names_builtin_file_and_line() {
        let error = scan_rule("y := time.now_ns()").expect_err("impure");
        assert!(error.to_string().starts_with("p.rego:4: time.now_ns is refused: "), "{error}");
    }

    #[test]
    fn impure_or_unbounded_builtins_are_refused() {
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
            "y := time[\"now_ns\"] ()",
            "y := units.parse(input.a)",
            "y := to_number(input.a)",
            "y := json.unmarshal(input.a)",
            "y := time.clock([0, \"Local\"])",
            "y := io.jwt.decode(\"x\")",
        ] {
            assert!(matches!(scan_rule(body), Err(Error::Builtin { .. })), "{body}");
        }
    }

    #[test]
    fn format_with_width_or_not_literal_is_refused() {
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
    fn functions_of_the_policy_are_allowed() {
        for body in
            ["y := f(1)", "y := data.lib.range(1)", "y := count([1])", "not (input.a)", "some y in (a | b)"]
        {
            assert_eq!(scan_rule(body), Ok(()), "{body}");
        }
    }

    #[test]
    fn builtin_in_a_string_or_comment_is_allowed() {
        assert_eq!(scan_rule("y := \"time.now_ns()\" # http.send({})"), Ok(()));
    }
}
