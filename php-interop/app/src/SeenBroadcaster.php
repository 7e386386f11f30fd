<?php

namespace App;

use Illuminate\Broadcasting\Broadcasters\Broadcaster;

/** With `BROADCAST_CONNECTION=seen`, each broadcast writes a line to the list `interop:seen`. */
final class SeenBroadcaster extends Broadcaster
{
    public function auth($request) {}

    public function validAuthenticationResponse($request, $result) {}

    public function broadcast(array $channels, $event, array $payload = []): void
    {
        Seen::record([
            'class' => self::class,
            'channels' => $this->formatChannels($channels),
            'event' => $event,
            'payload' => $payload,
        ]);
    }
}
