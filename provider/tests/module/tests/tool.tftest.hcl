run "plan_states_the_defaults" {
  command = plan

  assert {
    condition     = svc_mcp_tool.this.protocols == toset(["mcp"])
    error_message = "a tool speaks MCP unless its configuration states otherwise"
  }
}

run "tool_is_registered" {
  assert {
    condition     = output.tool_id == "reports-tool"
    error_message = "the identifier is that of the team"
  }

  assert {
    condition     = svc_mcp_tool.this.revision == 1
    error_message = "a new tool has its first revision"
  }
}

run "tool_of_another_team_replaces_it" {
  variables {
    team = "billing"
  }

  assert {
    condition     = output.tool_id == "billing-tool"
    error_message = "the identifier is that of the team"
  }
}
