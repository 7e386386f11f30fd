<?php

namespace App;

use Illuminate\Queue\NullQueue;

/** Makes payloads and drops them, for `interop:describe`. */
class RecordingQueue extends NullQueue
{
    public function push($job, $data = '', $queue = null)
    {
        $this->createPayload($job, $queue ?? 'default', $data);
    }

    public function later($delay, $job, $data = '', $queue = null)
    {
        $this->push($job, $data, $queue);
    }
}
