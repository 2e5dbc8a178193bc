# Tests of identity.rego against the rows in data.json. Run them with `trust-fabric policy test`.
package svc.identity_test

import data.svc.identity
import rego.v1

gateway := "spiffe://dev.trust-fabric.local/gateway"

ask(changes) := {
	"request": object.union(
		{
			"agent_name": "planner",
			"platform": "mcp",
			"capabilities": ["db.read", "db.write"],
			"delegation_depth": 1,
			"metadata": {},
		},
		changes,
	),
	"trust_domain": "dev.trust-fabric.local",
}

by(caller, question) := object.union(question, {"caller": caller})

denied_because(decision, reason) if {
	decision.allow == false
	contains(decision.reason, reason)
}

test_grants_a_caller_what_its_row_has if {
	decision := identity.decision with input as by(gateway, ask({}))
	decision.allow == true
	decision.grants == {"capabilities": {"db.read"}, "blast_radius": "namespace:demo", "delegation_depth": 1}
}

test_grants_nobody_a_row_of_its_own if {
	decision := identity.decision with input as ask({"platform": "watsonx"})
	decision.allow == true
	decision.grants.capabilities == {"db.read", "db.write"}
	decision.grants.delegation_depth == 2
}

test_a_row_without_depth_or_blast_radius_grants_no_hop_and_states_no_radius if {
	row := {"platforms": ["mcp"], "capabilities": ["db.read"]}
	decision := identity.decision with input as by("spiffe://a.example/x", ask({}))
		with data.identity.callers as {"spiffe://a.example/x": row}
	decision.grants == {"capabilities": {"db.read"}, "delegation_depth": 0}
}

test_denies_a_caller_without_a_row if {
	every caller in {
		"spiffe://dev.trust-fabric.local/gateway2",
		"spiffe://dev.trust-fabric.local/gatewa",
		"spiffe://dev.trust-fabric.local/gateway/x",
		"wimse://dev.trust-fabric.local/gateway",
		"",
	} {
		decision := identity.decision with input as by(caller, ask({}))
		denied_because(decision, "no row of the policy covers the caller")
	}
}

test_denies_nobody_where_nobody_has_no_row if {
	decision := identity.decision with input as ask({}) with data.identity as {"callers": {}}
	denied_because(decision, "no row of the policy covers the caller")
}

test_denies_a_platform_of_someone_else if {
	every platform in {"watsonx", "custom", "MCP", ""} {
		decision := identity.decision with input as by(gateway, ask({"platform": platform}))
		denied_because(decision, "may not have agents of this platform")
	}
}

test_denies_capabilities_that_the_caller_may_not_give if {
	every capability in {"db.write", "db", "db.read2", "cluster.admin"} {
		decision := identity.decision with input as by(gateway, ask({"capabilities": [capability]}))
		denied_because(decision, "any of these capabilities")
	}
}

test_denies_an_empty_question if {
	decision := identity.decision with input as {}
	decision.allow == false
}
