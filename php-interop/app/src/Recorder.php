<?php

namespace App;

use Illuminate\Queue\Events\JobQueued;
use Illuminate\Queue\Queue;
use Illuminate\Support\Facades\Event;

/**
 * Watches pushes to a queue and keeps, for each payload, a description of its
 * object, taken when the payload is made.
 */
final class Recorder
{
    /** @var list<array{uuid: ?string, id: ?string, queue: string}> */
    private array $records = [];

    public function __construct(private bool $describe)
    {
        Queue::createPayloadUsing(function ($connection, $queue, array $payload) {
            // At this point `command` still is the object; a string job has its data.
            $data = $payload['data'];
            $command = is_array($data) && is_object($data['command'] ?? null) ? $data['command'] : $data;
            $name = (string) $queue;
            $this->records[] = [
                'uuid' => $payload['uuid'] ?? null,
                'id' => null,
                'queue' => str_starts_with($name, 'queues:') ? substr($name, 7) : $name,
            ] + ($this->describe ? Document::of($command) : []);

            return [];
        });
        Event::listen(JobQueued::class, function (JobQueued $event) {
            $this->records[array_key_last($this->records)]['id'] = $event->id;
        });
    }

    /** The records since the last call. */
    public function take(): array
    {
        $records = $this->records;
        $this->records = [];

        return $records;
    }
}
