//! The protocol, over standard input and output.

use std::sync::Arc;
use std::time::Duration;

use rmcp::ErrorData;
use rmcp::handler::server::ServerHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, Implementation, JsonObject,
    ListToolsResult, PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool,
    ToolAnnotations,
};
use rmcp::service::{RequestContext, RoleServer, ServiceExt};
use serde_json::Value as Json;

use super::Session;
use super::screen;
use super::tools::{TOOLS, ToolInfo, call};

/// Why the server ended otherwise than by its client leaving.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("the MCP server cannot start: {0}")]
    Start(std::io::Error),
    #[error("the client did not begin as MCP says: {0}")]
    Protocol(String),
}

const INSTRUCTIONS: &str = "\
amk searches for a faster schedule of one model on one GPU part. Call `space` to see what may be chosen, `propose` to have \
candidates judged (each against the incumbent; certainly faster ones are kept), `best` and `journal` for what is known so far. \
`validate`, `evaluate` and `trace_summary` look at a candidate without the campaign. What was not measured says `predicted`. \
An error has `faults`, each with what to change (`fix`).";

#[derive(Clone)]
struct Server {
    session: Arc<Session>,
}

impl Server {
    fn tool(&self, info: &ToolInfo) -> Tool {
        let schema = match info.schema(&self.session) {
            Json::Object(schema) => schema,
            _ => JsonObject::new(),
        };
        let hints = ToolAnnotations::new().read_only(info.read_only).open_world(false);
        Tool::new(info.name, info.about, schema).with_annotations(hints)
    }
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let tools = ServerCapabilities::builder().enable_tools().build();
        ServerConfig::new(tools)
            .with_server_info(Implementation::new("amk", env!("CARGO_PKG_VERSION")))
            .with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(TOOLS.iter().map(|t| self.tool(t)).collect()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let session = Arc::clone(&self.session);
        let arguments = Json::Object(request.arguments.unwrap_or_default());
        let name = request.name.into_owned();
        // Judging takes minutes; the protocol goes on meanwhile.
        let called = tokio::task::spawn_blocking(move || call(&session, &name, arguments)).await;
        let (ok, document) = called.map_err(|e| {
            ErrorData::internal_error(format!("the tool ended unexpectedly: {e}"), None)
        })?;
        let result = match ok {
            true => CallToolResult::structured(document),
            false => CallToolResult::structured_error(document),
        };
        Ok(result.into())
    }
}

/// Serves a session until the client leaves or it is stopped, then ends the campaign.
///
/// # Errors
/// The server cannot start or the client does not speak MCP.
pub fn serve(session: &Arc<Session>) -> Result<(), ServeError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(ServeError::Start)?;
    let server = Server { session: Arc::clone(session) };
    let stopped = async {
        while !session.stopped() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let served = runtime.block_on(async {
        let speak = async {
            let (input, output, sent) = screen::streams();
            let running = server.serve((input, output)).await;
            let running = running.map_err(|e| ServeError::Protocol(e.to_string()))?;
            // However the connection ended, the journal has what was judged.
            let _ = running.waiting().await;
            // The last answers are on their way; a client that left does not take them.
            let _ = tokio::time::timeout(Duration::from_secs(5), sent).await;
            Ok(())
        };
        tokio::select! {
            served = speak => served,
            () = stopped => Ok(()),
        }
    });
    // A read of standard input cannot be cancelled; nobody waits for it.
    runtime.shutdown_background();
    served
}
