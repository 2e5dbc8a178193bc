# Tests of exchange.rego against the rows in data.json. Run them with `trust-fabric policy test`.
package svc.exchange_test

import data.svc.exchange
import rego.v1

fabric := "http://127.0.0.1:8693"

query_tool := "https://tools.dev.trust-fabric.local/sql-query"

migrate_tool := "https://tools.dev.trust-fabric.local/sql-migrate"

workload(path) := {
	"id": concat("", ["wimse://dev.trust-fabric.local/", path]),
	"trust_domain": "dev.trust-fabric.local",
	"issuer": "http://127.0.0.1:8698",
	"kind": "jwt",
	"act": [],
}

token_of(path) := object.union(workload(path), {"issuer": fabric, "kind": "agent-a2a"})

reporter := workload("ns/demo/sa/reporter")

orchestrator := token_of("ns/demo/sa/orchestrator")

ask(subject, request) := {
	"subject": subject,
	"request": object.union({"scope": [], "execution": false}, request),
}

denied_because(decision, reason) if {
	decision.allow == false
	contains(decision.reason, reason)
}

test_grants_a_namespace_its_row if {
	decision := exchange.decision with input as ask(reporter, {"audience": query_tool})
	decision.allow == true
	decision.grants.audience == query_tool
	decision.grants.capabilities == {"db.read"}
	decision.grants.blast_radius == "namespace:demo"
	decision.grants.delegation_depth == 0
}

test_gives_the_default_audience_when_none_is_asked_for if {
	decision := exchange.decision with input as ask(reporter, {})
	decision.grants.audience == query_tool
}

test_the_row_of_a_workload_replaces_that_of_its_namespace if {
	decision := exchange.decision with input as ask(workload("ns/demo/sa/orchestrator"), {})
	decision.allow == true
	decision.grants.audience == fabric
	decision.grants.delegation_depth == 2
	decision.grants.scopes == []
}

test_grants_only_what_the_audience_offers if {
	subject := workload("ns/demo/sa/migrator")
	decision := exchange.decision with input as ask(subject, {"audience": migrate_tool, "execution": true})
	decision.grants.capabilities == {"db.write"}
}

test_an_svid_counts_like_a_service_account if {
	subject := object.union(reporter, {
		"id": "spiffe://dev.trust-fabric.local/ns/demo/sa/reporter",
		"issuer": "spiffe://dev.trust-fabric.local",
		"kind": "spiffe-svid",
	})
	decision := exchange.decision with input as ask(subject, {})
	decision.allow == true
}

test_a_path_rule_covers_one_segment_per_star if {
	decision := exchange.decision with input as ask(token_of("agent/mcp/planner"), {})
	decision.allow == true
	decision.grants.delegation_depth == 2
}

# The fabric of cluster/ and docker-compose.yml has another name than that of `make run`.
test_the_fabric_of_three_nodes_counts_like_that_of_one if {
	subject := object.union(token_of("agent/mcp/planner"), {"issuer": "https://localhost:8694"})
	decision := exchange.decision with input as ask(subject, {"audience": "https://localhost:8694"})
	decision.allow == true
}

test_denies_an_unknown_issuer if {
	subject := object.union(reporter, {"issuer": "http://127.0.0.1:8699"})
	decision := exchange.decision with input as ask(subject, {})
	denied_because(decision, "issuer may not speak")
}

test_denies_an_issuer_with_the_wrong_kind_of_credential if {
	subject := object.union(reporter, {"kind": "agent-a2a"})
	decision := exchange.decision with input as ask(subject, {})
	denied_because(decision, "issuer may not speak")
}

test_denies_an_issuer_outside_its_trust_domain if {
	subject := object.union(reporter, {"trust_domain": "other.example"})
	decision := exchange.decision with input as ask(subject, {})
	denied_because(decision, "issuer may not speak")
}

test_denies_a_namespace_that_only_starts_alike if {
	every path in {"ns/demo2/sa/reporter", "ns/dem/sa/reporter", "ns/demo/sb/reporter", "ns/demo/sa/reporter/x", "ns/demo"} {
		decision := exchange.decision with input as ask(workload(path), {})
		denied_because(decision, "no row of the policy covers the subject")
	}
}

test_denies_a_path_that_only_starts_alike if {
	every path in {"agent", "agent/a", "agent/a/b/c", "agents/a/b", "agent2/a/b"} {
		decision := exchange.decision with input as ask(workload(path), {})
		denied_because(decision, "no row of the policy covers the subject")
	}
}

test_denies_an_unknown_audience if {
	decision := exchange.decision with input as ask(reporter, {"audience": "https://elsewhere.example"})
	denied_because(decision, "not known")
	decision.refusal == "audience"
}

test_denies_an_audience_that_only_starts_alike if {
	every audience in {concat("", [query_tool, "/"]), concat("", [query_tool, "2"]), "https://tools.dev.trust-fabric.local/sql", ""} {
		decision := exchange.decision with input as ask(reporter, {"audience": audience})
		decision.refusal == "audience"
	}
}

test_denies_an_audience_of_someone_else if {
	decision := exchange.decision with input as ask(reporter, {"audience": fabric})
	denied_because(decision, "may not have a token")
}

test_denies_a_powerful_audience_without_an_execution_scope if {
	decision := exchange.decision with input as ask(workload("ns/demo/sa/migrator"), {"audience": migrate_tool})
	denied_because(decision, "needs an execution scope")
}

test_lets_an_actor_act_for_its_namespace if {
	question := object.union(ask(reporter, {}), {"actor": orchestrator})
	decision := exchange.decision with input as question
	decision.allow == true
	decision.grants.capabilities == {"db.read"}
	decision.grants.delegation_depth == 2
}

test_denies_an_actor_without_a_row if {
	question := object.union(ask(reporter, {}), {"actor": token_of("ns/demo/sa/reporter")})
	decision := exchange.decision with input as question
	denied_because(decision, "may not act for this subject")
}

test_denies_an_actor_for_another_namespace if {
	question := object.union(ask(token_of("agent/mcp/planner"), {}), {"actor": orchestrator})
	decision := exchange.decision with input as question
	denied_because(decision, "may not act for this subject")
}

test_denies_an_actor_without_a_token_of_a_fabric if {
	question := object.union(ask(reporter, {}), {"actor": workload("ns/demo/sa/orchestrator")})
	decision := exchange.decision with input as question
	denied_because(decision, "not a token of a fabric")
}

test_denies_a_chain_that_is_too_long if {
	subject := object.union(reporter, {"act": ["wimse://dev.trust-fabric.local/a", "wimse://dev.trust-fabric.local/b"]})
	question := object.union(ask(subject, {}), {"actor": orchestrator})
	decision := exchange.decision with input as question
	denied_because(decision, "too many actors")
}

test_lets_an_agent_act_for_a_workload_by_its_path if {
	question := object.union(ask(reporter, {}), {"actor": token_of("agent/mcp/planner")})
	decision := exchange.decision with input as question
	decision.allow == true
	decision.grants.capabilities == {"db.read"}
}

test_lets_an_agent_act_for_another_by_both_paths if {
	question := object.union(ask(token_of("agent/a2a/coder"), {}), {"actor": token_of("agent/mcp/planner")})
	decision := exchange.decision with input as question
	decision.allow == true
}

test_denies_an_agent_whose_path_only_starts_alike if {
	every path in {"agent/mcp", "agent/mcp/planner/x", "agents/mcp/planner"} {
		question := object.union(ask(reporter, {}), {"actor": token_of(path)})
		decision := exchange.decision with input as question
		denied_because(decision, "may not act for this subject")
	}
}

test_denies_an_agent_for_another_namespace if {
	subject := workload("ns/other/sa/reporter")
	question := object.union(ask(subject, {}), {"actor": token_of("agent/mcp/planner")})
	decision := exchange.decision with input as question
	denied_because(decision, "may not act for this subject")
}

test_denies_too_many_actors_by_path_too if {
	subject := object.union(reporter, {"act": ["wimse://dev.trust-fabric.local/a", "wimse://dev.trust-fabric.local/b"]})
	question := object.union(ask(subject, {}), {"actor": token_of("agent/mcp/planner")})
	decision := exchange.decision with input as question
	denied_because(decision, "too many actors")
}

test_the_row_of_an_actor_replaces_the_rule_of_its_path if {
	id := "wimse://dev.trust-fabric.local/agent/mcp/planner"
	row := {"for_workloads": [], "for_namespaces": {}, "actors_max": 2}
	question := object.union(ask(reporter, {}), {"actor": token_of("agent/mcp/planner")})
	decision := exchange.decision with input as question with data.exchange.actors as {id: row}
	denied_because(decision, "may not act for this subject")
}

test_tables_without_rules_for_actors_paths_are_good if {
	tables := object.remove(data.exchange, ["actor_paths"])
	own := object.union(ask(reporter, {}), {"actor": orchestrator})
	decision := exchange.decision with input as own with data.exchange as tables
	decision.allow == true
	agent := object.union(ask(reporter, {}), {"actor": token_of("agent/mcp/planner")})
	denied := exchange.decision with input as agent with data.exchange as tables
	denied_because(denied, "may not act for this subject")
}

test_grants_nothing_that_the_actor_may_not_have if {
	subject := workload("ns/demo/sa/migrator")
	question := object.union(ask(subject, {"execution": true}), {"actor": orchestrator})
	decision := exchange.decision with input as question
	decision.allow == true
	decision.grants.capabilities == set()
}

test_denies_an_empty_question if {
	decision := exchange.decision with input as {}
	decision.allow == false
}
