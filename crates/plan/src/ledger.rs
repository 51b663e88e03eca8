//! stub, to be replaced
#[derive(Debug, Clone, serde::Serialize)]
pub struct JoinVerdict { pub join: String, pub outcome: JoinOutcome }
#[derive(Debug, Clone, serde::Serialize)]
pub enum JoinOutcome { Placed { filter: u32 }, Refused(Refusal) }
#[derive(Debug, Clone, Copy, serde::Serialize)]
pub enum Refusal { Disabled }
impl std::fmt::Display for Refusal { fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { f.write_str("x") } }
