#include "coordinator/standby/shared_store.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/status_macros.h"
#include "coordinator/store/epochs.h"
#include "coordinator/store/store_id.h"

namespace milepost::coordinator {
namespace {

constexpr absl::Duration kEtcdPatience = absl::Seconds(2);

std::string StoreKey(const std::string& key) { return key + "/store"; }

absl::Status Compare(const std::string& known, const std::string& here, const std::string& key,
                     const std::string& dir) {
  if (known == here) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "--data-dir: ", dir, here.empty() ? " is not" : " is another store than",
      " the one that the coordinators of ", key, " share: is it mounted? (To begin anew with ",
      "this one: etcdctl del ", StoreKey(key), ")"));
}

// The name, or that there is a store to give one to: else who knows what this directory is.
absl::StatusOr<std::string> NameOf(const std::string& dir) {
  MP_ASSIGN_OR_RETURN(std::string here, ReadStoreId(dir));
  if (!here.empty()) return here;
  MP_ASSIGN_OR_RETURN(const bool there, HasStore(dir));
  if (there) return here;
  return absl::FailedPreconditionError(absl::StrCat(
      "--data-dir: there is no store in ", dir,
      ": is it mounted? (To begin a new one, once: milepost-coordinator init-store ", dir, ")"));
}

}  // namespace

absl::StatusOr<bool> CheckSharedStore(EtcdClient* etcd, const std::string& key,
                                      const std::string& dir) {
  MP_ASSIGN_OR_RETURN(const std::optional<EtcdKey> known, etcd->Get(StoreKey(key), kEtcdPatience));
  if (!known.has_value()) {
    MP_RETURN_IF_ERROR(NameOf(dir).status());
    return false;
  }
  MP_ASSIGN_OR_RETURN(const std::string here, ReadStoreId(dir));
  MP_RETURN_IF_ERROR(Compare(known->value, here, key, dir));
  return true;
}

absl::Status ClaimSharedStore(EtcdClient* etcd, const std::string& key, const std::string& dir) {
  MP_ASSIGN_OR_RETURN(const bool known, CheckSharedStore(etcd, key, dir));
  if (known) return absl::OkStatus();
  MP_ASSIGN_OR_RETURN(std::string here, NameOf(dir));
  if (here.empty()) {
    MP_ASSIGN_OR_RETURN(here, MakeStoreId(dir));
  }
  MP_ASSIGN_OR_RETURN(const EtcdKey made,
                      etcd->Create(StoreKey(key), here, /*lease=*/0, kEtcdPatience));
  return Compare(made.value, here, key, dir);
}

}  // namespace milepost::coordinator
