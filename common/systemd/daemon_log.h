// Where a daemon's log goes: to the journal when systemd has started it with that, with a priority
// and fields to look for; else to stderr, with times.
//
//   StartDaemonLog("coordinator", "%Y-%m-%dT%H:%M:%S.%e %l coordinator: %v");
//   // journalctl MILEPOST_JOB=jobs/7 -p warning
#ifndef MILEPOST_COMMON_SYSTEMD_DAEMON_LOG_H_
#define MILEPOST_COMMON_SYSTEMD_DAEMON_LOG_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace milepost {

// Makes spdlog's default logger, named `name`. `pattern` is for stderr. `worker`, when not empty,
// is the field MILEPOST_WORKER of every line. May be called again before there are other threads.
void StartDaemonLog(const std::string& name, const std::string& pattern,
                    const std::string& worker = "");

// Whether `stream`, the value of JOURNAL_STREAM (may be null), says that the open file `fd` is a
// stream to the journal.
bool IsJournal(const char* stream, int fd);

// What a line of the log has in the journal besides its text: "MILEPOST_JOB=jobs/7" for the first
// job that it names, and MILEPOST_WORKER for the first worker (workers/ID), unless `worker` is
// given, which is then that.
std::vector<std::string> JournalFields(absl::string_view line, const std::string& worker);

}  // namespace milepost

#endif  // MILEPOST_COMMON_SYSTEMD_DAEMON_LOG_H_
