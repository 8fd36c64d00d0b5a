// Options of a session store in Redis.
#pragma once

#include "absl/time/time.h"
#include "server/redis/redis_address.h"

namespace ovq::redis {

struct RedisStoreOptions {
  RedisAddress address = {};
  // How long this server owns its sessions after it was last heard of.
  absl::Duration lease = absl::Seconds(10);
  absl::Duration reply_timeout = absl::Seconds(3);  // of connecting, and of each piece of a reply
  // How long a change is tried while Redis cannot be reached.
  absl::Duration patience = absl::Seconds(10);
  // Time for another server to release a session. Longer than the lease, so that a call waits for
  // the end of a server that is gone.
  absl::Duration ownership_timeout = absl::Seconds(11);
  // How often this server looks for sessions whose owners ended without anybody asking for them.
  absl::Duration sweep_interval = absl::Minutes(5);
  int replicas = 0;  // that must have a change before it is reported as done
};

}  // namespace ovq::redis
