"""What every verdict is given besides its finding: hosts, frames of libraries, citations that hold."""
