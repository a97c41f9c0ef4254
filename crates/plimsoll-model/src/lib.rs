//! Architectures, parameter inventories, the operator graph and its operator table.
