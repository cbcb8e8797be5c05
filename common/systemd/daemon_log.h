// Chooses where a daemon's log goes. When systemd has connected the daemon to the journal, it goes
// there, with a priority and searchable fields. Otherwise it goes to stderr, with times.
//
//   StartDaemonLog("coordinator", "%Y-%m-%dT%H:%M:%S.%e %l coordinator: %v");
//   // journalctl MILEPOST_JOB=jobs/7 -p warning
#ifndef MILEPOST_COMMON_SYSTEMD_DAEMON_LOG_H_
#define MILEPOST_COMMON_SYSTEMD_DAEMON_LOG_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace milepost {

// Makes spdlog's default logger, named `name`. `pattern` is for stderr. A `worker` that is not
// empty becomes the field MILEPOST_WORKER of every line. May be called again before other threads
// exist.
void StartDaemonLog(const std::string& name, const std::string& pattern,
                    const std::string& worker = "");

// True when `stream`, the value of JOURNAL_STREAM (may be null), says that the open file `fd` is a
// stream to the journal.
bool IsJournal(const char* stream, int fd);

// The journal's fields of a log line, besides its text. MILEPOST_JOB=jobs/7 has the first job that
// the line names. MILEPOST_WORKER has `worker`, or if that is empty the first worker that the line
// names (workers/ID).
std::vector<std::string> JournalFields(absl::string_view line, const std::string& worker);

}  // namespace milepost

#endif  // MILEPOST_COMMON_SYSTEMD_DAEMON_LOG_H_
