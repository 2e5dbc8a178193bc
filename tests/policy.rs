//! Policy as a black box: hostile bundles, killable loading, the shipped policy.
//!
//! Uses only the public interface of `trust_fabric::policy`.

#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Deserialize;
use serde_json::Map;
use strum::VariantArray as _;
use trust_fabric::clock::Clock;
use trust_fabric::json;
use trust_fabric::limits;
use trust_fabric::policy::compile::{self, Check};
use trust_fabric::policy::exchange::{Party, PolicyInput, RequestedGrant};
use trust_fabric::policy::identity;
use trust_fabric::policy::signals::{self, EventEffect};
use trust_fabric::policy::{Bundle, DenialKind, Error, Point, Source};

const PROGRAM: &str = env!("CARGO_BIN_EXE_trust-fabric");

fn source(path: &str, text: &str) -> Source {
    Source { path: path.to_owned(), text: text.to_owned() }
}

fn policy(rules: &str) -> Source {
    source("exchange.rego", &format!("package svc.exchange\n\nimport rego.v1\n\n{rules}\n"))
}

fn shipped() -> Vec<Source> {
    [
        "data.json",
        "exchange.rego",
        "exchange_test.rego",
        "identity.rego",
        "identity_test.rego",
        "signals.rego",
        "signals_test.rego",
    ]
    .into_iter()
    .map(|name| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("policies").join(name);
        source(name, &std::fs::read_to_string(path).expect("shipped policy"))
    })
    .collect()
}

fn party(id: &str) -> Party<'_> {
    Party {
        id,
        trust_domain: "dev.trust-fabric.local",
        issuer: "http://127.0.0.1:8698",
        fabric: None,
        via: Vec::new(),
        kind: "jwt",
        original_sub: "system:serviceaccount:demo:reporter",
        email: None,
        namespace: Some("demo"),
        service_account: Some("reporter"),
        capabilities: None,
        scope: None,
        blast_radius: None,
        delegation_depth: None,
        act: &[],
    }
}

fn question() -> PolicyInput<'static> {
    PolicyInput {
        subject: party("wimse://dev.trust-fabric.local/ns/demo/sa/reporter"),
        actor: None,
        request: RequestedGrant {
            audience: None,
            scope: &[],
            execution: false,
            htm: None,
            htu: None,
            exec_act: None,
            target: None,
        },
        caller: None,
    }
}

fn denial_of(rules: &str) -> DenialKind {
    let bundle = Bundle::compile(&[policy(rules)]).unwrap_or_else(|error| panic!("{rules}: {error}"));
    match bundle.decide_exchange(&question()) {
        Ok(permit) => panic!("{rules}: {permit:?}"),
        Err(denial) => {
            assert_eq!(denial.policy_digest, bundle.digest());
            assert!(denial.reason.bytes().all(|b| b.is_ascii_graphic() || b == b' '), "{denial:?}");
            denial.kind
        }
    }
}

fn granting(member: &str, value: &str) -> String {
    format!(
        r#"decision := {{"allow": true, "reason": "granted", "grants": object.union(
            {{"audience": "https://a.example", "capabilities": ["db.read"]}}, {{"{member}": {value}}})}}"#
    )
}

#[test]
fn refuses_a_policy_that_does_not_parse_or_compile() {
    for rules in ["decision := {", "decision := x", "decision := f(1)", "decision := unknown.builtin(1)"] {
        let refused = Bundle::compile(&[policy(rules)]);
        assert!(
            matches!(refused, Err(Error::Syntax { .. } | Error::DoesNotCompile { .. })),
            "{rules}: {refused:?}"
        );
    }
}

#[test]
fn refuses_a_bundle_without_the_rule_that_answers() {
    for sources in [
        vec![],
        vec![source("data.json", "{}")],
        vec![policy("other := 1")],
        vec![source("x.rego", "package other\n\ndecision := 1\n")],
    ] {
        assert!(matches!(Bundle::compile(&sources), Err(Error::DoesNotCompile { .. })), "{sources:?}");
    }
}

#[test]
fn refuses_paths_that_leave_the_bundle_or_come_twice() {
    for path in ["", "/etc/x.rego", "../x.rego", "a/../x.rego", "a//x.rego", "x.yaml", "a b.rego", "x.rego/"]
    {
        assert!(matches!(Bundle::compile(&[source(path, "")]), Err(Error::Path { .. })), "{path}");
    }
    let twice = [policy("decision := 1"), policy("decision := 2")];
    assert_eq!(
        Bundle::compile(&twice).expect_err("twice"),
        Error::DuplicatePath { path: "exchange.rego".to_owned() }
    );
}

#[test]
fn refuses_a_bundle_beyond_its_limits() {
    let many: Vec<_> = (0..=limits::POLICY_FILES_MAX).map(|n| source(&format!("{n}.rego"), "")).collect();
    assert!(matches!(Bundle::compile(&many), Err(Error::TooManyFiles { .. })));
    let large = source("x.rego", &"#".repeat(limits::POLICY_BYTES_MAX));
    assert!(matches!(Bundle::compile(&[large]), Err(Error::TooManyBytes { .. })));
    let at =
        |bytes: usize| [policy("decision := 1"), source(&format!("{}.json", "x".repeat(bytes - 5)), "{}")];
    assert!(Bundle::compile(&at(limits::POLICY_PATH_BYTES_MAX)).is_ok());
    assert!(matches!(Bundle::compile(&at(limits::POLICY_PATH_BYTES_MAX + 1)), Err(Error::Path { .. })));
}

#[test]
fn refuses_data_that_is_not_an_object_or_contradicts_itself() {
    let rules = policy("decision := 1");
    for text in ["", "[]", "{\"a\":1,\"a\":2}", "{} {}"] {
        let refused = Bundle::compile(&[rules.clone(), source("data.json", text)]);
        assert!(matches!(refused, Err(Error::Data { .. })), "{text}: {refused:?}");
    }
    let two = [rules.clone(), source("a.json", r#"{"a":1}"#), source("b.json", r#"{"a":2}"#)];
    assert!(matches!(Bundle::compile(&two), Err(Error::Data { .. })));
    let shadow = [rules, source("data.json", r#"{"svc":{"exchange":{"decision":1}}}"#)];
    assert!(Bundle::compile(&shadow).is_err(), "data in place of the answer");
}

#[test]
fn refuses_builtins_that_outlive_the_deadline_or_are_impure() {
    for call in
        ["numbers.range(1, 20000000)", r#"sprintf("%2000000000d", [1])"#, "time.now_ns()", "http.send({})"]
    {
        let refused = Bundle::compile(&[policy(&format!("decision := {call}"))]);
        assert!(matches!(&refused, Err(Error::Builtin { line: 5, .. })), "{call}: {refused:?}");
    }
}

#[test]
fn every_answer_that_is_not_a_granted_true_denies() {
    for answer in ["\"allow\"", "true", "1", "null", "[]", "{}", "{\"allow\": true}", "{true}"] {
        assert_eq!(denial_of(&format!("decision := {answer}")), DenialKind::Malformed, "{answer}");
    }
    assert_eq!(denial_of(r#"decision := {"allow": false, "reason": "no"}"#), DenialKind::Policy);
    assert_eq!(denial_of("decision := 1 if false"), DenialKind::Undefined);
    assert_eq!(denial_of("decision := 1 if input.nothing"), DenialKind::Undefined);
}

#[test]
fn wrongly_typed_grants_deny() {
    for (member, value) in [
        ("capabilities", "\"db.read\""),
        ("capabilities", "[1]"),
        ("delegation_depth", "-1"),
        ("delegation_depth", "1.5"),
        ("delegation_depth", "1e99"),
        ("delegation_depth", "99999999999999999999999999"),
        ("blast_radius", "\"\""),
        ("audience", "\"\""),
        ("unknown", "1"),
    ] {
        assert_eq!(denial_of(&granting(member, value)), DenialKind::Malformed, "{member}: {value}");
    }
    let bundle = Bundle::compile(&[policy(&granting("capabilities", "{\"db.read\", \"db.write\"}"))]);
    let permit = bundle.expect("compiles").decide_exchange(&question()).expect("a set is a list");
    assert_eq!(permit.capabilities, BTreeSet::from(["db.read".to_owned(), "db.write".to_owned()]));
}

#[test]
fn rules_that_contradict_each_other_deny() {
    assert_eq!(denial_of("decision := 1\n\ndecision := 2"), DenialKind::Failed);
    let hidden = "decision := {\"allow\": true, \"reason\": \"a\"} if input.subject\n\n\
                  decision := {\"allow\": false, \"reason\": \"b\"} if input.request";
    assert_eq!(denial_of(hidden), DenialKind::Failed);
}

#[test]
fn error_inside_a_negation_denies() {
    // Each of these would allow if the helper counted as undefined.
    for helper in [
        "blocked := 1 if input.subject\n\nblocked := 2 if input.request",
        "blocked := x if some x in [1, 2]",
        "blocked := time.parse_duration_ns(\"x\")",
        "blocked := 1 / 0",
        "blocked := other\n\nother := blocked",
        "blocked if f(1) == 3\n\nf(x) := 1 if x > 0\n\nf(x) := 2 if x > 0",
    ] {
        let rules = format!("{}\n\n{helper}", granting("scopes", "[]").replace("decision :=", "answer :="));
        let rules = format!("decision := answer if not blocked\n\n{rules}");
        assert_eq!(denial_of(&rules), DenialKind::Failed, "{helper}");
    }
}

#[test]
fn refuses_recursive_functions_and_chains_that_are_too_deep() {
    for rules in [
        "decision := f(1)\n\nf(x) := f(x)",
        "decision := f(1)\n\nf(x) := g(x)\n\ng(x) := [y | y := h(x)]\n\nh(x) := data.svc.exchange.f(x)",
        "import data.svc.exchange.f as g\n\ndecision := f(1)\n\nf(x) := g(x)",
        "import data.svc[\"exchange\"].f\nas\ng\n\ndecision := f(1)\n\nf(x) := g(x)",
        "decision := f(1)\n\nf(x) := data.svc[\"exchange\"].f(x)",
        "decision := lib.f(1)\n\nlib.f(x) := lib.f(x)",
    ] {
        let refused = Bundle::compile(&[policy(rules)]);
        assert!(matches!(refused, Err(Error::Recursion { .. })), "{rules}: {refused:?}");
    }
    let chain = |length: usize, call: &str| {
        let links: Vec<_> = (1..length).map(|n| format!("r{n}{call} := r{}{call}\n\n", n + 1)).collect();
        let links = links.concat();
        policy(&format!("decision := r1{}\n\n{links}r{length}{call} := 1", call.replace('x', "1")))
    };
    for call in ["", "(x)"] {
        // The decision rule is one of the chain.
        let bundle =
            Bundle::compile(&[chain(limits::POLICY_CALL_DEPTH_MAX - 1, call)]).expect("at the limit");
        assert_eq!(bundle.decide_exchange(&question()).expect_err("a number").kind, DenialKind::Malformed);
        let refused = Bundle::compile(&[chain(limits::POLICY_CALL_DEPTH_MAX, call)]);
        assert!(matches!(refused, Err(Error::TooDeep { .. })), "{refused:?}");
        let refused = Bundle::compile(&[chain(5000, call)]);
        assert!(matches!(refused, Err(Error::TooDeep { .. })), "{refused:?}");
    }
}

#[test]
fn field_or_variable_named_like_a_rule_is_no_recursion() {
    let rules =
        "decision := f(input).decision\n\nf(x) := {\"decision\": x.f, \"f\": actor}\n\nactor := input.actor";
    assert!(Bundle::compile(&[policy(rules)]).is_ok());
}

#[test]
fn tests_take_no_part_in_decisions() {
    let with = policy("decision := x if x := input.a with input as {}");
    assert!(matches!(Bundle::compile(&[with]), Err(Error::WithOutsideTest { line: 5, .. })));
    let reach = policy("decision := data.svc.exchange_test.answer");
    let tests = source("x_test.rego", "package svc.exchange_test\n\nanswer := 1\n");
    let denial = Bundle::compile(&[reach, tests]).expect("compiles").decide_exchange(&question());
    assert_eq!(denial.expect_err("not there").kind, DenialKind::Undefined);
    let broken = [policy("decision := 1"), source("x_test.rego", "package x\n\ntest_a if {")];
    assert!(matches!(Bundle::compile(&broken), Err(Error::Syntax { .. })));
}

#[test]
fn a_loop_without_a_near_end_is_denied_by_the_deadline() {
    let digits = "digits := [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]";
    let loops: Vec<_> = (0..9).map(|n| format!("\tsome n{n} in digits\n")).collect();
    let loops = loops.concat();
    let rules = format!("{digits}\n\ndecision := count([1 |\n{loops}\tn0 + n1 + n2 > 100\n])");
    let began = Clock::system().boot();
    assert_eq!(denial_of(&rules), DenialKind::TimedOut);
    let took = Clock::system().boot().saturating_sub(began);
    assert!(took < 20 * limits::POLICY_DECISION_TIMEOUT, "{took:?}");
    // The next decision on this thread is not affected.
    assert_eq!(denial_of("decision := 1"), DenialKind::Malformed);
}

#[test]
fn one_thread_evaluates_two_bundles_in_turn() {
    let a = Bundle::compile(&[policy(&granting("scopes", "[\"a\"]"))]).expect("compiles");
    let b = Bundle::compile(&[policy(&granting("scopes", "[\"b\"]"))]).expect("compiles");
    for _ in 0..3 {
        for (bundle, scope) in [(&a, "a"), (&b, "b")] {
            let permit = bundle.decide_exchange(&question()).expect("permitted");
            assert!(permit.scopes.contains(scope) && permit.policy_digest == bundle.digest());
        }
    }
}

#[test]
fn an_answer_never_depends_on_the_question_before() {
    let rules = r#"decision := {"allow": false, "reason": input.request.audience}"#;
    let bundle = Bundle::compile(&[policy(rules)]).expect("compiles");
    for audience in ["https://a.example", "https://b.example"] {
        let mut question = question();
        question.request.audience = Some(audience);
        assert_eq!(bundle.decide_exchange(&question).expect_err("denied").reason, audience);
    }
}

#[test]
fn a_remembered_answer_is_for_exactly_that_question_and_bundle() {
    let rules = |word: &str| {
        policy(&format!(r#"decision := {{"allow": false, "reason": sprintf("{word} %v", [input.subject])}}"#))
    };
    let [a, b] = ["a", "b"].map(|word| Bundle::compile(&[rules(word)]).expect("compiles"));
    let acts = [vec![], vec!["x".to_owned()], vec!["x".to_owned(), "y".to_owned()], vec!["x,y".to_owned()]];
    let mut reasons = BTreeSet::new();
    for _ in 0..2 {
        for bundle in [&a, &b] {
            for act in &acts {
                for email in [None, Some(""), Some("x")] {
                    let mut question = question();
                    question.subject.act = act;
                    question.subject.email = email;
                    reasons.insert(bundle.decide_exchange(&question).expect_err("denied").reason);
                }
            }
        }
    }
    assert_eq!(reasons.len(), 2 * 4 * 3);
}

#[test]
fn the_digest_does_not_depend_on_file_order_but_on_every_byte() {
    let (a, b) = (policy("decision := 1"), source("data.json", "{}"));
    let digest = |sources: &[Source]| Bundle::compile(sources).expect("compiles").digest().to_owned();
    assert_eq!(digest(&[a.clone(), b.clone()]), digest(&[b.clone(), a.clone()]));
    assert_eq!(digest(&[a.clone(), b.clone()]).len(), 43);
    assert_ne!(digest(&[a.clone(), b]), digest(&[a.clone(), source("data.json", "{} ")]));
    assert_ne!(digest(std::slice::from_ref(&a)), digest(&[policy("decision := 2")]));
}

#[test]
fn loads_accepted_bundles_and_repeats_the_compilers_error() {
    let bundle = compile::load(Path::new(PROGRAM), &shipped(), Check::PassesTests).expect("loads");
    assert_eq!(bundle.digest(), Bundle::compile(&shipped()).expect("compiles").digest());
    let refused =
        compile::load(Path::new(PROGRAM), &[policy("decision := time.now_ns()")], Check::PassesTests);
    let Err(Error::RefusedByCompiler(message)) = refused else { panic!("{refused:?}") };
    assert!(message.contains("exchange.rego:5: time.now_ns is refused"), "{message}");
}

#[test]
fn slow_compilation_is_stopped_at_the_timeout() {
    let nested = format!("decision := {}{}", "[".repeat(40), "]".repeat(40));
    let began = Clock::system().boot();
    let refused = compile::load(Path::new(PROGRAM), &[policy(&nested)], Check::PassesTests);
    assert_eq!(refused.expect_err("killed"), Error::LoadDeadlineExceeded);
    let took = Clock::system().boot().saturating_sub(began);
    assert!(took >= limits::POLICY_LOAD_TIMEOUT && took < limits::POLICY_LOAD_TIMEOUT * 5, "{took:?}");
}

#[test]
fn a_compiler_that_does_not_read_is_stopped_at_the_deadline() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let program = directory.path().join("deaf");
    std::fs::write(&program, "#!/bin/sh\nexec tail -f /dev/null\n").expect("script");
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o700)).expect("mode");
    let large = policy(&format!("decision := 1\n#{}", "x".repeat(limits::POLICY_BYTES_MAX / 2)));
    let began = Clock::system().boot();
    assert_eq!(
        compile::load(&program, &[large], Check::Compiles).expect_err("killed"),
        Error::LoadDeadlineExceeded
    );
    assert!(Clock::system().boot().saturating_sub(began) < limits::POLICY_LOAD_TIMEOUT * 5);
}

/// A bundle whose tests are these rules.
fn tested(rules: &str) -> Vec<Source> {
    let tests = format!("package svc.exchange_test\n\nimport rego.v1\n\n{rules}\n");
    vec![policy("decision := {\"allow\": true}"), source("exchange_test.rego", &tests)]
}

/// Attack: a bundle that grants what its own tests forbid.
#[test]
fn bundle_that_fails_its_tests_is_not_applied() {
    let sources = tested(
        "test_denies_strangers if not data.svc.exchange.decision.allow\n\ntest_is_there if data.svc.exchange.decision",
    );
    let refused = compile::load(Path::new(PROGRAM), &sources, Check::PassesTests);
    let Err(Error::RefusedByCompiler(message)) = refused else { panic!("{refused:?}") };
    assert!(
        message.contains("tests of the bundle failed: data.svc.exchange_test.test_denies_strangers;"),
        "{message}"
    );
    compile::load(Path::new(PROGRAM), &sources, Check::Compiles)
        .expect("a node that restarts has its policy");
}

/// Attack: tests that overflow the stack, or never end, take the process of the node with them.
#[test]
fn tests_that_recurse_or_never_end_end_their_process() {
    let recursive = tested("f(x) := f(x + 1)\n\ntest_recurses if f(0)");
    let refused = compile::load(Path::new(PROGRAM), &recursive, Check::PassesTests);
    assert!(matches!(&refused, Err(Error::RefusedByCompiler(_))), "{refused:?}");
    let loops: Vec<_> = (0..9).map(|n| format!("\tsome n{n} in digits\n")).collect();
    let loops = loops.concat();
    let endless = (0..3).map(|n| format!("test_{n} if count([1 |\n{loops}\tn0 + n1 > 100\n]) == 0\n\n"));
    let endless =
        format!("digits := [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]\n\n{}", endless.collect::<Vec<_>>().concat());
    let refused = compile::load(Path::new(PROGRAM), &tested(&endless), Check::PassesTests);
    assert_eq!(refused.expect_err("killed"), Error::TestsDeadlineExceeded);
}

/// Attack: tests are not checked for recursion, and an explanation evaluated them.
#[test]
fn recursive_test_in_the_deciding_package_is_not_explained() {
    let recursive = "package svc.exchange\n\nimport rego.v1\n\nf(x) := f(x + 1)\n\nendless := f(0)\n";
    let sources = [policy("decision := {\"allow\": false}"), source("exchange_test.rego", recursive)];
    let bundle = Bundle::compile(&sources).expect("compiles");
    let explanation = bundle.explain(Point::Exchange, &serde_json::json!({}));
    assert_eq!(explanation.rules.keys().collect::<Vec<_>>(), ["data.svc.exchange.decision"]);
}

#[test]
fn shipped_policy_passes_its_tests() {
    let outcomes = Bundle::compile(&shipped()).expect("compiles").test();
    assert!(outcomes.len() >= 20, "{outcomes:#?}");
    let failed: Vec<_> = outcomes.iter().filter(|outcome| !outcome.passed).collect();
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
fn a_test_that_is_not_true_fails() {
    let tests = "package svc.exchange_test\n\nimport rego.v1\n\n\
                 test_a if false\n\ntest_b := 1\n\ntest_c if true\n\nhelper if false\n";
    let sources = [policy("decision := 1\n\ntest_not_in_a_test_package := 1"), source("x_test.rego", tests)];
    let outcomes = Bundle::compile(&sources).expect("compiles").test();
    let seen: Vec<_> = outcomes.iter().map(|o| (o.name.as_str(), o.passed, o.detail.as_str())).collect();
    assert_eq!(
        seen,
        [
            ("data.svc.exchange_test.test_a", false, "is undefined"),
            ("data.svc.exchange_test.test_b", false, "is 1"),
            ("data.svc.exchange_test.test_c", true, ""),
        ]
    );
}

#[test]
fn a_test_that_does_not_end_fails_in_time() {
    let digits = "digits := [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]";
    let loops: Vec<_> = (0..9).map(|n| format!("\tsome n{n} in digits\n")).collect();
    let loops = loops.concat();
    let tests = format!(
        "package svc.exchange_test\n\nimport rego.v1\n\n{digits}\n\n\
         test_loops if count([1 |\n{loops}\tn0 + n1 + n2 > 100\n]) == 0\n"
    );
    let sources = [policy("decision := 1"), source("x_test.rego", &tests)];
    let bundle = Bundle::compile(&sources).expect("compiles");
    let began = Clock::system().boot();
    let outcomes = bundle.test();
    let took = Clock::system().boot().saturating_sub(began);
    let [outcome] = outcomes.as_slice() else { panic!("{outcomes:?}") };
    assert_eq!((outcome.passed, outcome.detail.as_str()), (false, "exceeded its deadline"));
    assert!(took >= limits::POLICY_TEST_TIMEOUT && took < limits::POLICY_TEST_TIMEOUT * 5, "{took:?}");
}

#[test]
fn explanation_has_the_decision_and_its_rules() {
    let bundle = Bundle::compile(&shipped()).expect("compiles");
    let input = serde_json::to_value(question()).expect("question");
    let explanation = bundle.explain(Point::Exchange, &input);
    assert_eq!(explanation.answer.expect("answer")["allow"], true);
    assert_eq!(
        explanation.rules["data.svc.exchange.audience"],
        "https://tools.dev.trust-fabric.local/sql-query"
    );
    assert_eq!(explanation.rules["data.svc.exchange.actors"], "is undefined");
    assert!(!explanation.rules.contains_key("data.svc.exchange.row"), "functions have no value");
    let nothing = Bundle::compile(&[policy("decision := 1 if false")])
        .expect("compiles")
        .explain(Point::Exchange, &input);
    assert_eq!((nothing.answer, nothing.error.as_deref()), (None, Some("policy has no answer")));
}

/// One row of `tests/vectors/policy/<point>.json`, which a second Rego engine evaluates too.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Vector {
    name: String,
    input: serde_json::Value,
    expected: serde_json::Value,
}

#[test]
fn the_compiled_policy_gives_the_answers_of_the_vectors() {
    let bundle = Bundle::compile(&shipped()).expect("compiles");
    for &point in Point::VARIANTS {
        let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/policy");
        let path = vectors.join(format!("{}.json", point.into_str()));
        let vectors = json::parse(&std::fs::read(path).expect("vectors")).expect("JSON");
        let vectors: Vec<Vector> = json::from_value(vectors).expect("vectors");
        assert!(vectors.len() >= 20);
        for Vector { name, input, expected } in vectors {
            let explanation = bundle.explain(point, &input);
            assert_eq!(explanation.answer, Some(expected), "{name}: {:?}", explanation.error);
        }
    }
}

/// A rule for agents, beside an exchange rule that denies.
fn agent_policy(rule: &str) -> Result<Bundle, Error> {
    let identity = format!("package svc.identity\n\nimport rego.v1\n\n{rule}\n");
    Bundle::compile(&[
        policy("decision := {\"allow\": false, \"reason\": \"no\"}"),
        source("identity.rego", &identity),
    ])
}

fn decided(bundle: &Bundle) -> Result<String, DenialKind> {
    decided_for(bundle, &BTreeMap::new())
}

fn decided_for(bundle: &Bundle, metadata: &BTreeMap<String, String>) -> Result<String, DenialKind> {
    let capabilities = BTreeSet::from(["db.read".to_owned()]);
    let question = identity::PolicyInput {
        request: identity::RequestedIdentity {
            agent_name: "planner",
            platform: "mcp",
            capabilities: &capabilities,
            max_blast_radius: None,
            delegation_depth: 0,
            metadata,
        },
        parent: None,
        caller: None,
        trust_domain: "dev.trust-fabric.local",
    };
    match bundle.decide_identity(&question) {
        Ok(permit) => Ok(permit.capabilities.iter().cloned().collect::<Vec<_>>().join(" ")),
        Err(denial) => Err(denial.kind),
    }
}

/// Attack: the engine's conversion of JSON took an object with this member for a number of any size, whose digits it computed
/// for minutes, or took the whole input for undefined, so that a rule that denies did not apply.
#[test]
fn metadata_named_like_a_number_is_an_object() {
    let bundle = agent_policy(
        "denied if input.request.platform == \"mcp\"\n\n\
         decision := {\"allow\": true, \"reason\": \"\", \"grants\": {\"capabilities\": \
         [type_name(input.request.metadata)]}} if denied\n\n\
         decision := {\"allow\": true, \"reason\": \"\", \"grants\": {\"capabilities\": [\"all\"]}} if not denied",
    );
    let bundle = bundle.expect("compiles");
    for number in ["x", "7", "1e9", "1e2000000000"] {
        let metadata = BTreeMap::from([("$serde_json::private::Number".to_owned(), number.to_owned())]);
        assert_eq!(decided_for(&bundle, &metadata), Ok("object".to_owned()), "{number}");
    }
}

#[test]
fn agent_rules_are_optional_but_must_compile() {
    let without = Bundle::compile(&[policy("decision := {\"allow\": false, \"reason\": \"no\"}")]);
    let without = without.expect("compiles");
    assert!(!without.decides_identity());
    assert_eq!(decided(&without), Err(DenialKind::Undefined));
    let other = agent_policy("verdict := true").expect("compiles");
    assert!(!other.decides_identity());
    for rule in
        ["decision := x", "decision := unknown.builtin(1)", "decision := {", "decision := time.now_ns()"]
    {
        assert!(agent_policy(rule).is_err(), "{rule}");
    }
    let grants = |caller: &str| {
        format!(r#"decision := {{"allow": true, "reason": "", "grants": {{"capabilities": [{caller}]}}}}"#)
    };
    let bundle = agent_policy(&grants("input.request.agent_name")).expect("compiles");
    assert!(bundle.decides_identity());
    assert_eq!(decided(&bundle), Ok("planner".to_owned()));
    assert_eq!(
        decided(&agent_policy(&grants("input.caller")).expect("compiles")),
        Err(DenialKind::Undefined)
    );
    let contradicting = agent_policy("decision := 1\ndecision := 2").expect("compiles");
    assert_eq!(decided(&contradicting), Err(DenialKind::Failed));
}

/// A rule for signals, beside an exchange rule that denies.
fn signal_policy(rule: &str) -> Result<Bundle, Error> {
    let signals = format!("package svc.signals\n\nimport rego.v1\n\n{rule}\n");
    Bundle::compile(&[
        policy("decision := {\"allow\": false, \"reason\": \"no\"}"),
        source("signals.rego", &signals),
    ])
}

const REVOKED: &str = "https://schemas.openid.net/secevent/caep/event-type/session-revoked";

/// The effect of a `session-revoked` event for an email address.
fn effect(bundle: &Bundle, caller: Option<&str>) -> Result<EventEffect, DenialKind> {
    let aud = ["https://fabric.example".to_owned()];
    let (sub_id, claims) = (serde_json::json!({"format": "email", "email": "a@b.example"}), Map::new());
    let set = signals::SetInput {
        iss: "https://idp.example",
        jti: "7f3c",
        iat: 1_800_000_000,
        aud: &aud,
        txn: None,
        sub_id: &sub_id,
        events: BTreeMap::from([(REVOKED, &claims)]),
    };
    match bundle.decide_signal(&signals::PolicyInput { set, caller, is_signed: caller.is_none() }) {
        Ok(permit) => Ok(permit.effect(REVOKED).expect("every event has an effect").clone()),
        Err(denial) => Err(denial.kind),
    }
}

#[test]
fn signal_rules_are_optional_but_must_compile() {
    let without = agent_policy("decision := true").expect("compiles");
    assert!(!without.decides_signals());
    assert_eq!(effect(&without, None), Err(DenialKind::Undefined));
    for rule in
        ["decision := x", "decision := unknown.builtin(1)", "decision := {", "decision := time.now_ns()"]
    {
        assert!(signal_policy(rule).is_err(), "{rule}");
    }
    let answer = |effect: &str| {
        format!(
            r#"decision := {{"allow": true, "reason": "", "effects": {{uri: {effect} | some uri, _ in input.set.events}}}}"#
        )
    };
    let bundle = signal_policy(&answer(r#"{"effect": "block", "family": "all"}"#)).expect("compiles");
    assert!(bundle.decides_signals() && !bundle.decides_identity());
    assert_eq!(effect(&bundle, None), Ok(EventEffect::Block { family: "all".to_owned() }));
    // An undefined effect omits the event from the output, which denies.
    let by_caller =
        signal_policy(&answer(r#"{"effect": "lift", "family": input.caller}"#)).expect("compiles");
    assert_eq!(
        effect(&by_caller, Some("spiffe://a")),
        Ok(EventEffect::Lift { family: "spiffe://a".to_owned() })
    );
    assert_eq!(effect(&by_caller, None), Err(DenialKind::Malformed));
    let contradicting = signal_policy("decision := 1\ndecision := 2").expect("compiles");
    assert_eq!(effect(&contradicting, None), Err(DenialKind::Failed));
}

#[test]
fn decision_cache_separates_signals() {
    let rule = r#"decision := {"allow": input.is_signed, "reason": "", "effects": {uri: {"effect": "none"} | some uri, _ in input.set.events}}"#;
    let bundle = signal_policy(rule).expect("compiles");
    for _ in 0..3 {
        assert_eq!(effect(&bundle, None), Ok(EventEffect::None));
        assert_eq!(effect(&bundle, Some("spiffe://a")), Err(DenialKind::Policy));
    }
}

#[test]
fn one_thread_evaluates_every_rule_of_a_bundle() {
    let bundle = Bundle::compile(&shipped()).expect("compiles");
    for _ in 0..3 {
        assert_eq!(decided(&bundle), Ok("db.read".to_owned()));
        assert_eq!(effect(&bundle, None), Ok(EventEffect::Watermark));
        assert!(bundle.decide_exchange(&question()).is_ok());
    }
}
