//! A forwarder on the loopback interface.
