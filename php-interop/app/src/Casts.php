<?php

namespace App;

use App\Events\Cast;
use App\Models\User;
use App\Notifications\CastAlert;
use App\Notifications\CastNamed;
use App\Values\Money;
use App\Values\Point;
use Carbon\CarbonImmutable;
use Closure;
use DateTimeImmutable;
use DateTimeZone;
use Illuminate\Contracts\Broadcasting\Factory as Broadcasting;
use Illuminate\Support\Carbon;
use Illuminate\Support\Facades\Broadcast;
use Illuminate\Support\Facades\Notification;

/** Broadcast events, one per name: each queues itself. */
final class Casts
{
    /** @return array<string, Closure> */
    public static function all(): array
    {
        $queue = fn (object $event) => app(Broadcasting::class)->queue($event);
        $socket = function (object $event) {
            $event->socket = '123.456';

            return $event;
        };
        $by = (object) ['name' => 'Zoë', 'list' => [], '7' => 1.5, 'inner' => (object) []];
        $casts = [
            'announced' => fn () => $queue(new Cast\Announced),
            'announced-changed' => function () use ($queue, $socket) {
                $event = new Cast\Announced(9, 'given');
                $event->nothing = [0.5, (object) ['a' => 1]];
                $queue($socket($event));
            },
            'child' => fn () => $queue(new Cast\Child(8)),
            'bare' => fn () => $queue(new Cast\Bare),
            'nowhere' => fn () => $queue(new Cast\Nowhere),
            'rooms' => fn () => $queue(new Cast\Rooms(4, $by, ['key' => 12])),
            'rooms-to-others' => fn () => $queue($socket(new Cast\Rooms(5, $by, ['key' => 'k/', 'socket' => 'own', 'f' => 2.0]))),
            'dated' => fn () => $queue(new Cast\Dated(
                Carbon::parse('2024-01-02 03:04:05.678901', 'Europe/Paris'),
                CarbonImmutable::parse('1969-07-20 20:17:40', 'America/New_York'),
                new DateTimeImmutable('2024-07-02 03:04:05', new DateTimeZone('+02:00')),
                $by
            )),
            'score' => fn () => $queue($socket(new Events\ScoreChanged('Wisła', 3, ['minute' => 17, 'share' => 1.0]))),
            'paid' => fn () => $queue(new Cast\Paid(new Money(3.0, 'x', new Point(1, 2.5)), [new Money(0.1, 'y')])),
            'model-key' => fn () => $queue(new Cast\ModelKey(User::findOrFail(1))),
            'single' => fn () => $queue(new Cast\Single(1)),
            'notification' => fn () => Notification::send(User::findOrFail(1), new CastAlert(['sum' => 3.5, 'id' => 'own', 4 => 'x'])),
            'notification-named' => fn () => Notification::send(User::findOrFail(2), new CastNamed(['sum' => 1])),
            'via' => fn () => $queue($socket(new Cast\SentEverywhere('redis'))),
            'via-two' => fn () => $queue($socket(new Cast\SentEverywhere(['redis', 'second']))),
            'via-default' => fn () => $queue(new Cast\SentEverywhere(null)),
            // Only PHP knows what these publish.
            'php-model' => fn () => $queue(new Cast\WithModel(User::findOrFail(1))),
            'php-computed' => fn () => $queue(new Cast\Computed),
            'php-collection' => fn () => $queue(new Cast\Valued(collect([1, 2]))),
            'php-log' => fn () => $queue(new Cast\SentEverywhere('log')),
        ];
        if (class_exists(\Illuminate\Broadcasting\AnonymousEvent::class)) {
            $casts += [
                'anonymous' => fn () => Broadcast::on(['open', new \Illuminate\Broadcasting\PresenceChannel('in')])
                    ->with(['text' => 'ż/', 'list' => [1, 2.0], 'empty' => [], 9 => 'nine'])->send(),
                'anonymous-named' => fn () => Broadcast::private('mine')->as('My\Event')->via('redis')->send(),
                'anonymous-list' => fn () => Broadcast::on('one')->with([])->via('second')->send(),
                'via-parts' => fn () => $queue($socket(new Cast\Sent(['redis', 'second']))),
                'notification-anonymous' => fn () => Notification::route('broadcast', [new \Illuminate\Broadcasting\Channel('routed')])
                    ->notify(new CastAlert(['a' => 1])),
                'php-middleware' => fn () => $queue(new Cast\Guarded),
            ];
        } else {
            $casts['guarded'] = fn () => $queue(new Cast\Guarded);
        }

        return $casts;
    }
}
