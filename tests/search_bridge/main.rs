//! The search seen from outside: the model of cost against what was measured, agents at the bridge, the MCP server driven by
//! a client of its own library.

mod cost;
mod mcp;
mod stdio;
mod support;
