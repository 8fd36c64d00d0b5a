// Options of a session store in an S3-compatible object store.
#pragma once

#include "absl/time/time.h"
#include "server/s3/s3_address.h"

namespace ovq::s3 {

struct S3StoreOptions {
  S3Address address = {};
  S3Credentials credentials = {};
  // How long this server owns its sessions after it was last heard of.
  absl::Duration lease = absl::Seconds(10);
  // This bounds connecting and each response, and is a second longer for each MiB of the request.
  absl::Duration reply_timeout = absl::Seconds(3);
  // How long a change is tried while the object store cannot be reached.
  absl::Duration patience = absl::Seconds(10);
  // Time for another server to release a session. Longer than the lease, so that a call waits for
  // the end of a server that is gone.
  absl::Duration ownership_timeout = absl::Seconds(12);
  // How often this server looks whether others ask for its sessions.
  absl::Duration listen_interval = absl::Milliseconds(250);
  // How often this server looks for servers that ended, whose sessions nobody asks for.
  absl::Duration sweep_interval = absl::Minutes(5);
  // How long replaced objects stay for whoever reads them.
  absl::Duration replaced_life = absl::Minutes(1);
  // The age at which an object that nothing names is removed, and how often such are looked for.
  absl::Duration orphan_age = absl::Hours(24);
};

}  // namespace ovq::s3
