// How sessions leave their server or the object store, and which sessions there are.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/s3/garbage.h"
#include "server/s3/owned_sessions.h"

namespace ovq::s3 {

enum class Leave : uint8_t {
  kRelease,
  kQuarantine,
  kRemove,
  kUncreate,  // removes one that may come to be stored later
};
struct Leaving {
  HeldSession held;
  Leave how = Leave::kRelease;
};

// Gives a session up as `leaving` says. Errors: those of OwnedSessions::Write.
absl::Status WriteLeave(S3Client& client, OwnedSessions& sessions, Garbage& garbage,
                        Leaving& leaving, SteadyTime until);

// Makes the object of a removed session, which keeps nothing but its epoch.
absl::Status MakeRemoved(SessionObject& object);

// Quarantines a session that nobody owns, if it still has this ETag ("": if its object cannot be
// decoded), where `why` says that it is damaged. Returns the error for whoever wanted the session.
// Aborted: it has changed meanwhile.
absl::Status QuarantineDamaged(S3Client& client, const std::string& id, const std::string& etag,
                               const absl::Status& why, SteadyTime until);

// The error, Aborted, of a session that another server has changed while this one was about to.
absl::Status ChangedMeanwhile(const std::string& id);

}  // namespace ovq::s3
