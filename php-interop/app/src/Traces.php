<?php

namespace App;

use Illuminate\Contracts\Events\Dispatcher;
use Illuminate\Mail\Events\MessageSent;
use Illuminate\Notifications\Events\NotificationSent;

/**
 * With `INTEROP_TRACES` set, each sent mail and notification writes a line
 * to the list `interop:seen`; without it they leave no trace.
 */
final class Traces
{
    public static function leave(Dispatcher $events): void
    {
        $events->listen(MessageSent::class, function (MessageSent $event) {
            Seen::record([
                'class' => MessageSent::class,
                'subject' => $event->message->getSubject(),
                'to' => self::addresses($event->message->getTo()),
                'cc' => self::addresses($event->message->getCc()),
            ]);
        });
        $events->listen(NotificationSent::class, function (NotificationSent $event) {
            Seen::record([
                'class' => $event->notification::class,
                'channel' => $event->channel,
                'notifiable' => $event->notifiable::class,
            ]);
        });
    }

    /** Laravel 8 has arrays of names, later ones objects. */
    private static function addresses(?array $addresses): array
    {
        $texts = [];
        foreach ($addresses ?? [] as $address => $name) {
            $texts[] = is_object($name) ? $name->toString() : $address.' '.$name;
        }

        return $texts;
    }
}
