// Has a daemon read its --config file again whenever SIGHUP comes.
//
//   struct Parsed { Flags flags; FlagTable table; };  // its constructor adds the flags
//   BlockSignal(SIGHUP);                              // before the first thread
//   Reloader<Parsed> reloader(args, &started, &service, [&](const Flags& flags) { ... });
//
// What is wrong with the file goes to the log, and all values stay. Without --config SIGHUP is
// left alone.
#ifndef MILEPOST_COMMON_FLAGS_RELOADER_H_
#define MILEPOST_COMMON_FLAGS_RELOADER_H_

#include <signal.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/flags/flag_table.h"
#include "common/flags/signal_thread.h"
#include "common/systemd/service.h"

namespace milepost {

// Says in the log, and to systemd, how reading again has ended. `since_last`, of a file that is in
// order: the changes since it was read last; `since_start`: since the daemon began.
void LogReload(const absl::Status& status, const std::string& config,
               const FlagTable::Changes& since_last, const FlagTable::Changes& since_start,
               Service* service);

template <typename Parsed>
class Reloader {
 public:
  // Takes over those flags that SIGHUP changes; with an error nothing has changed. Called from a
  // thread of its own.
  using Apply = std::function<absl::Status(const decltype(Parsed::flags)& flags)>;

  // `args`: the command line, without the program's name. `started`: what they were read into. It
  // and `service` outlive this.
  Reloader(std::vector<std::string> args, Parsed* started, Service* service, Apply apply)
      : args_(std::move(args)), started_(started), service_(service), apply_(std::move(apply)) {
    if (!started->table.config().empty()) thread_.emplace(SIGHUP, [this] { Reload(); });
  }

 private:
  void Reload() {
    service_->Reloading();
    auto read = std::make_unique<Parsed>();
    absl::Status status = read->table.Read(args_);
    if (status.ok()) status = apply_(read->flags);
    FlagTable& last = latest_ == nullptr ? started_->table : latest_->table;
    LogReload(status, started_->table.config(), read->table.ChangesSince(last),
              read->table.ChangesSince(started_->table), service_);
    if (status.ok()) latest_ = std::move(read);
  }

  const std::vector<std::string> args_;
  Parsed* const started_;
  Service* const service_;
  const Apply apply_;
  std::unique_ptr<Parsed> latest_;
  std::optional<SignalThread> thread_;  // last: uses all the others
};

}  // namespace milepost

#endif  // MILEPOST_COMMON_FLAGS_RELOADER_H_
