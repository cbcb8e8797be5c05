#include "worker/agent/exit_class.h"

#include <algorithm>
#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/exit_codes.h"

namespace milepost::worker {

namespace {

v1::FailureClass ClassOfExitCode(int code) {
  switch (code) {
    case kExitUsage:
      return v1::FAILURE_CLASS_USER;
    case kExitData:
      return v1::FAILURE_CLASS_DATA;
    case kExitOutOfMemory:
      return v1::FAILURE_CLASS_OUT_OF_MEMORY;
    case kExitNetwork:
    case kExitPeerLost:
      return v1::FAILURE_CLASS_NETWORK;
    default:
      return v1::FAILURE_CLASS_INTERNAL;
  }
}

void DescribeSignal(const TrainerEnd& end, v1::RankReport& report) {
  report.set_signal(end.exit.signal);
  std::string message = absl::StrCat("the trainer was ", end.exit.ToString());
  if (!end.silence.empty()) {
    report.set_failure_class(v1::FAILURE_CLASS_HOST);
    message = absl::StrCat(end.silence, ", and was killed");
  } else if (end.killed_by_us) {
    report.set_peer_lost(true);
    report.set_failure_class(v1::FAILURE_CLASS_HOST);
    message += " by its worker, as told";
  } else if (end.exit.signal == SIGKILL && end.oom_kill_seen) {
    report.set_failure_class(v1::FAILURE_CLASS_OUT_OF_MEMORY);
    message += " by the kernel's out-of-memory killer";
  } else if (end.exit.signal == SIGKILL || end.exit.signal == SIGTERM) {
    report.set_failure_class(v1::FAILURE_CLASS_HOST);
    message += ", not by Milepost: someone's kill, or the host ran out of memory";
  } else {
    report.set_failure_class(v1::FAILURE_CLASS_INTERNAL);
  }
  report.set_message(message);
}

// "07:52:09.482 I step 30: ...": how the trainer logs, between the lines of the script.
bool IsTrainersOwn(absl::string_view line) {
  constexpr absl::string_view kForm = "00:00:00.000 ";
  if (line.size() < kForm.size()) return false;
  for (size_t i = 0; i < kForm.size(); ++i) {
    const bool digit = kForm[i] == '0';
    if (digit ? !absl::ascii_isdigit(line[i]) : line[i] != kForm[i]) return false;
  }
  return true;
}

// Empty: there is none.
std::string LastLineOfScript(const std::vector<std::string>& lines) {
  const auto found = std::find_if_not(lines.rbegin(), lines.rend(), IsTrainersOwn);
  return found == lines.rend() ? "" : *found;
}

void DescribeFailureCode(const TrainerEnd& end, v1::RankReport& report) {
  const int code = end.exit.exit_code;
  report.set_failure_class(ClassOfExitCode(code));
  report.set_peer_lost(code == kExitPeerLost || code == kExitFenced);
  if (end.failure.has_value()) {
    if (end.failure->class_() != v1::FAILURE_CLASS_UNSPECIFIED) {
      report.set_failure_class(end.failure->class_());
    }
    const std::string last = end.failure->with_last_line() ? LastLineOfScript(end.last_lines) : "";
    report.set_message(absl::StrCat(end.failure->message(), last.empty() ? "" : ": ", last));
    if (end.failure->has_position()) *report.mutable_position() = end.failure->position();
  } else if (!end.last_lines.empty()) {
    report.set_message(absl::StrCat(end.exit.ToString(), ": ", end.last_lines.back()));
  } else {
    report.set_message(absl::StrCat("the trainer ended with ", end.exit.ToString()));
  }
}

}  // namespace

void DescribeEnd(const TrainerEnd& end, v1::RankReport& report) {
  report.set_exit_code(end.exit.exit_code);
  if (end.exit.success()) {
    report.set_state(v1::RANK_STATE_SUCCEEDED);
    return;
  }
  // SIGTERM kills only a trainer that has not yet begun.
  if ((end.exit.signal == 0 && end.exit.exit_code == kExitStopped) ||
      (end.exit.signal == SIGTERM && end.asked_to_stop)) {
    report.set_state(v1::RANK_STATE_STOPPED);
    return;
  }
  report.set_state(v1::RANK_STATE_FAILED);
  if (end.exit.signal != 0) {
    DescribeSignal(end, report);
  } else {
    DescribeFailureCode(end, report);
  }
  for (const std::string& line : end.last_lines) report.add_last_lines(line);
}

std::string ProcessState(int pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  std::string text;
  if (!std::getline(file, text)) return "";
  const size_t name_end = text.rfind(") ");  // the name may have anything in it
  if (name_end == std::string::npos || name_end + 2 >= text.size()) return "";
  const char state = text[name_end + 2];
  switch (state) {
    case 'T':
    case 't':
      return "stopped (T)";
    case 'D':
      return "waiting for a disk or device (D)";
    default:
      return absl::StrCat("in state ", std::string(1, state));
  }
}

}  // namespace milepost::worker
