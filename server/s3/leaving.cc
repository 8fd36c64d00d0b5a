#include "server/s3/leaving.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status_macros.h"

namespace ovq::s3 {

absl::Status ChangedMeanwhile(const std::string& id) {
  return absl::AbortedError(absl::StrCat("session ", id, ": it has changed meanwhile"));
}

absl::Status MakeRemoved(SessionObject& object) {
  object = {.epoch = object.epoch, .removed = true};
  return absl::OkStatus();
}

absl::Status WriteLeave(S3Client& client, OwnedSessions& sessions, Garbage& garbage,
                        Leaving& leaving, SteadyTime until) {
  HeldSession& held = leaving.held;
  bool unanswered = false;
  if (leaving.how == Leave::kRelease) {
    const auto release = [](SessionObject& object) {
      object.owner.clear();
      return absl::OkStatus();
    };
    return sessions.Write(held, release, until, unanswered);
  }
  std::vector<std::string> data;
  const auto remove = [&](SessionObject& object) -> absl::Status {
    if (leaving.how == Leave::kQuarantine) {
      const std::string key = absl::StrCat(kDamagedPrefix, held.id);
      RETURN_IF_ERROR(client.PutObject(key, EncodeSessionObject(object), {}, until).status());
    } else {
      data = DataKeys(held.id, object);
    }
    return MakeRemoved(object);
  };
  absl::Status status = sessions.Write(held, remove, until, unanswered);
  if (absl::IsNotFound(status) && leaving.how == Leave::kUncreate) {
    // With this there, the creation that may still be under way comes to nothing.
    const SessionObject removed = {.epoch = held.epoch, .nonce = UnguessableHex(), .removed = true};
    const absl::StatusOr<StoredObject> there = ReadSessionObject(client, held.id, until);
    const bool old = there.ok() && there->object.removed;
    status = client
                 .PutObject(SessionKey(held.id), EncodeSessionObject(removed),
                            old ? Precondition::This(there->etag) : Precondition::Absent(), until)
                 .status();
    // It came before.
    if (absl::IsFailedPrecondition(status)) {
      status = sessions.Write(held, remove, until, unanswered);
    }
    if (absl::IsNotFound(status)) status = absl::OkStatus();
  }
  if (!status.ok()) return status;
  garbage.RemoveLater(std::move(data));
  if (held.stored && leaving.how != Leave::kUncreate) {
    (void)client.DeleteThis(SessionKey(held.id), held.stored->etag, /*until=*/{});
  }
  return status;
}

absl::Status QuarantineDamaged(S3Client& client, const std::string& id, const std::string& etag,
                               const absl::Status& why, SteadyTime until) {
  absl::Status status = why;
  if (absl::IsDataLoss(why)) {
    ASSIGN_OR_RETURN(const ObjectBytes object, client.GetObject(SessionKey(id), until));
    const bool changed =
        etag.empty() ? DecodeSessionObject(object.bytes).ok() : object.etag != etag;
    if (changed) return ChangedMeanwhile(id);
    const std::string damaged = absl::StrCat(kDamagedPrefix, id);
    RETURN_IF_ERROR(client.PutObject(damaged, object.bytes, {}, until).status());
    const SessionObject removed = {.nonce = UnguessableHex(), .removed = true};
    const absl::StatusOr<std::string> now = client.PutObject(
        SessionKey(id), EncodeSessionObject(removed), Precondition::This(object.etag), until);
    if (absl::IsFailedPrecondition(now.status())) {
      // The copy is needed unless the session is a good one again.
      const absl::StatusOr<StoredObject> there = ReadSessionObject(client, id, until);
      const bool mine = there.ok() && there->object.nonce == removed.nonce;
      if (there.ok() && !there->object.removed) (void)client.Delete(damaged, until);
      if (!mine) return ChangedMeanwhile(id);
    } else {
      RETURN_IF_ERROR(now.status());
      (void)client.DeleteThis(SessionKey(id), *now, until);
    }
    status = absl::DataLossError(
        absl::StrCat(std::string(why.message()), "; its object is now ", damaged));
  }
  return status;
}

}  // namespace ovq::s3
