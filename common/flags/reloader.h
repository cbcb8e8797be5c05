// Makes a daemon read its --config file again at every SIGHUP.
//
//   struct Parsed { Flags flags; FlagTable table; };  // its constructor adds the flags
//   BlockSignal(SIGHUP);                              // before the first thread
//   Reloader<Parsed> reloader(args, &started, &service, [&](const Flags& flags) { ... });
//
// When the file is wrong, the error goes to the log and all values stay. Without --config it does
// not handle SIGHUP.
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

// Reports the result of a reload to the log and to systemd. For a valid file, `since_last` has the
// changes since the file was last read, and `since_start` those since the daemon began.
void LogReload(const absl::Status& status, const std::string& config,
               const FlagTable::Changes& since_last, const FlagTable::Changes& since_start,
               Service* service);

template <typename Parsed>
class Reloader {
 public:
  // Applies the flags that SIGHUP changes. After an error nothing has changed. Called on a thread
  // of the reloader.
  using Apply = std::function<absl::Status(const decltype(Parsed::flags)& flags)>;

  // `args`: the command line, without the program's name. `started`: the object into which it was
  // parsed. `started` and `service` must outlive this object.
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
  std::optional<SignalThread> thread_;  // last: it uses all the others
};

}  // namespace milepost

#endif  // MILEPOST_COMMON_FLAGS_RELOADER_H_
