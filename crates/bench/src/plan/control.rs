//! The control: a subject measured a second time under another name. What the two differ by is
//! what chance does.

use std::path::Path;
use std::sync::Arc;

use crate::executor::Executor;
use crate::failure::Failure;
use crate::results::{LeftOut, SubjectInfo};
use crate::storage::Storage;
use crate::subject::{Session, Subject, Tuning};

/// The same subject again.
pub(super) struct Control {
    of: Arc<dyn Subject>,
}

impl Control {
    pub(super) fn new(of: Arc<dyn Subject>) -> Control {
        Control { of }
    }
}

/// Its name.
pub(super) fn name(of: &str) -> String {
    format!("{of} (control)")
}

impl Subject for Control {
    fn info(&self) -> SubjectInfo {
        let info = self.of.info();
        SubjectInfo { name: name(&info.name), control_of: Some(info.name), ..info }
    }

    fn check(&self, executor: &Executor) -> Result<(), LeftOut> {
        self.of.check(executor)
    }

    fn storage(&self) -> &dyn Storage {
        self.of.storage()
    }

    fn start(
        &self,
        scratch: &Path,
        tuning: &Tuning,
        executor: &Executor,
    ) -> Result<Box<dyn Session>, Failure> {
        self.of.start(scratch, tuning, executor)
    }
}
