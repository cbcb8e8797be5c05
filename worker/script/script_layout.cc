#include "worker/script/script_layout.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <map>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/unique_fd.h"
#include "milepost/v1/trainer.pb.h"

namespace milepost::worker {
namespace {

std::string PlaceKey(int rank) { return absl::StrCat("script.place.", rank); }
std::string HostKey(const std::string& host) { return absl::StrCat("script.host.", host); }

// Free for now: somebody may take it before the script does, as with torchrun. Then the attempt
// fails and the next one has another.
absl::StatusOr<int> FreePort() {
  UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (!listener.ok() || bind(listener.get(), generic, size) != 0 ||
      getsockname(listener.get(), generic, &size) != 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no port is free for MASTER_PORT: ",
                     std::string(absl::ErrnoToStatus(errno, "bind").message())));
  }
  return ntohs(address.sin_port);
}

absl::StatusOr<std::vector<ScriptPlace>> GatherPlaces(comm::KeyValueStore* store, int world,
                                                      absl::Time deadline) {
  std::vector<ScriptPlace> places;
  for (int rank = 0; rank < world; ++rank) {
    absl::StatusOr<std::string> bytes = store->Get(PlaceKey(rank), deadline);
    if (absl::IsDeadlineExceeded(bytes.status())) {
      return absl::DeadlineExceededError(
          absl::StrCat("rank ", rank, " of ", world, " did not come to start the script"));
    }
    MP_RETURN_IF_ERROR(bytes.status());
    v1::ScriptPlace place;
    if (!place.ParseFromString(*bytes)) return absl::InternalError("a rank's place is unreadable");
    places.push_back({place.host(), place.gpu()});
  }
  return places;
}

absl::Status Publish(comm::KeyValueStore* store, const std::vector<ScriptPlace>& places,
                     const std::vector<ScriptLayout>& hosts) {
  for (const ScriptLayout& layout : hosts) {
    const std::string& host = places[layout.rank].host;
    v1::ScriptHost message;
    message.set_group_rank(layout.group_rank);
    message.set_group_world(layout.group_world);
    message.set_master_address(layout.master_address);
    message.set_master_port(layout.master_port);
    message.mutable_gpus()->Assign(layout.local_gpus.begin(), layout.local_gpus.end());
    for (int rank = 0; rank < layout.world; ++rank) {
      if (places[rank].host == host) message.add_ranks(rank);
    }
    MP_RETURN_IF_ERROR(store->Put(HostKey(host), message.SerializeAsString()));
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<ScriptLayout> HostLayouts(const std::vector<ScriptPlace>& places,
                                      const std::string& master_address, int master_port) {
  std::map<std::string, size_t> numbers;
  std::vector<ScriptLayout> hosts;
  for (size_t rank = 0; rank < places.size(); ++rank) {
    const auto [known, added] = numbers.try_emplace(places[rank].host, hosts.size());
    if (added) {
      hosts.push_back({.rank = static_cast<int>(rank),
                       .world = static_cast<int>(places.size()),
                       .local_world = 0,
                       .group_rank = static_cast<int>(hosts.size()),
                       .master_address = master_address,
                       .master_port = master_port});
    }
    ScriptLayout& host = hosts[known->second];
    ++host.local_world;
    if (!places[rank].gpu.empty()) host.local_gpus.push_back(places[rank].gpu);
  }
  for (ScriptLayout& host : hosts) host.group_world = static_cast<int>(hosts.size());
  return hosts;
}

absl::StatusOr<ScriptLayout> MeetForLayout(comm::KeyValueStore* store, int rank, int world,
                                           const ScriptPlace& place, const std::string& address,
                                           absl::Time deadline) {
  if (world == 1) {
    MP_ASSIGN_OR_RETURN(const int port, FreePort());
    return HostLayouts({place}, address, port)[0];
  }
  v1::ScriptPlace own;
  own.set_host(place.host);
  own.set_gpu(place.gpu);
  MP_RETURN_IF_ERROR(store->Put(PlaceKey(rank), own.SerializeAsString()));
  if (rank == 0) {
    MP_ASSIGN_OR_RETURN(const int port, FreePort());
    MP_ASSIGN_OR_RETURN(const std::vector<ScriptPlace> places,
                        GatherPlaces(store, world, deadline));
    MP_RETURN_IF_ERROR(Publish(store, places, HostLayouts(places, address, port)));
  }
  MP_ASSIGN_OR_RETURN(const std::string bytes, store->Get(HostKey(place.host), deadline));
  v1::ScriptHost host;
  if (!host.ParseFromString(bytes)) return absl::InternalError("a host's layout is unreadable");
  ScriptLayout layout = {.rank = rank,
                         .world = world,
                         .local_world = host.ranks_size(),
                         .group_rank = host.group_rank(),
                         .group_world = host.group_world(),
                         .local_gpus = {host.gpus().begin(), host.gpus().end()},
                         .master_address = host.master_address(),
                         .master_port = host.master_port()};
  while (layout.local_rank < host.ranks_size() && host.ranks(layout.local_rank) != rank) {
    ++layout.local_rank;
  }
  return layout;
}

// Rank 0 counts them: each of the others waits for one key.
absl::Status AwaitRanks(comm::KeyValueStore* store, int rank, int world, absl::Time deadline) {
  const auto key = [](int of) { return absl::StrCat("here.", of); };
  for (int peer = 1; rank == 0 && peer < world; ++peer) {
    const absl::Status came = store->Get(key(peer), deadline).status();
    if (absl::IsDeadlineExceeded(came)) {
      return absl::DeadlineExceededError(
          absl::StrCat("rank ", peer, " of ", world, " did not come"));
    }
    MP_RETURN_IF_ERROR(came);
  }
  MP_RETURN_IF_ERROR(store->Put(key(rank), ""));
  return rank == 0 ? absl::OkStatus() : store->Get(key(0), deadline).status();
}

}  // namespace milepost::worker
