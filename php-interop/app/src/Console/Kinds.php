<?php

namespace App\Console;

use App\Document;
use App\Models\User;
use App\Recorder;
use App\Wrapped;
use Illuminate\Broadcasting\BroadcastEvent;
use Illuminate\Console\Command;
use Illuminate\Contracts\Broadcasting\Factory as Broadcasting;
use Illuminate\Contracts\Database\ModelIdentifier;
use Illuminate\Events\CallQueuedListener;
use Illuminate\Foundation\Console\QueuedCommand;
use Illuminate\Mail\SendQueuedMailable;
use Illuminate\Notifications\SendQueuedNotifications;
use Illuminate\Queue\Queue as BaseQueue;
use Illuminate\Support\Facades\Artisan;
use Illuminate\Support\Facades\Event;
use Illuminate\Support\Facades\Mail;
use Illuminate\Support\Facades\Notification;
use Illuminate\Support\Facades\Queue;
use ReflectionProperty;

use function Illuminate\Events\queueable;

/**
 * Everything that Laravel wraps, in all its forms, and PHP's view of each wrapper.
 *
 * Separate from the catalogue, whose jobs are in fixtures.
 */
class Kinds extends Command
{
    protected $signature = 'interop:kinds';

    protected $description = 'Queue listeners, notifications, mail and so on; a JSON line for each, with what is in it';

    public function handle(): int
    {
        $recorder = new Recorder(true);
        $facts = [];
        BaseQueue::createPayloadUsing(function ($connection, $queue, array $payload) use (&$facts) {
            $data = $payload['data'];
            $command = is_array($data) && is_object($data['command'] ?? null) ? $data['command'] : null;
            $facts[] = $this->facts($payload, $command, $data);

            return [];
        });
        $this->listen();
        foreach ($this->all() as $kind => $dispatch) {
            $dispatch();
            foreach ($recorder->take() as $record) {
                $this->output->writeln(
                    Document::json(['kind' => $kind] + array_shift($facts) + $record), $this->output::OUTPUT_RAW
                );
            }
        }

        return 0;
    }

    private function listen(): void
    {
        Event::listen(Wrapped\Paid::class, Wrapped\OnPaid::class);
        Event::listen(Wrapped\Paid::class, Wrapped\OnPaid::class.'@other');
        Event::listen(Wrapped\Paid::class, Wrapped\Secretly::class);
        Event::listen(Wrapped\Paid::class, Wrapped\Guarded::class);
        Event::listen(Wrapped\Paid::class, Wrapped\Singly::class);
        Event::listen(Wrapped\Paid::class, queueable(fn (Wrapped\Paid $event) => null));
        Event::listen('order.paid', Wrapped\OnName::class);
        Event::listen('order.nothing', Wrapped\OnName::class);
        Event::listen('stock.*', Wrapped\OnName::class.'@any');
    }

    private function all(): array
    {
        $users = fn () => User::query()->orderBy('id')->limit(2)->get();
        $anonymous = fn () => Notification::route('mail', ['zoë@example.com' => 'Zoë'])->route('App\Channels\Sms', '+48 1');
        $unique = fn () => new Wrapped\UniqueScore('Wisła', 7);

        return [
            'listener' => fn () => event(new Wrapped\Paid(User::findOrFail(1), 12.0)),
            'listener-of-name' => fn () => event('order.paid', [7, ['a' => 1.5], 'x']),
            'listener-of-name-alone' => fn () => event('order.nothing'),
            'listener-of-wildcard' => fn () => event('stock.low', [7]),
            'notification' => fn () => Notification::send(User::findOrFail(1), new Wrapped\Invoice(17)),
            'notification-many' => fn () => Notification::send($users(), (new Wrapped\Invoice(18))->locale('de')),
            'notification-anonymous' => fn () => $anonymous()->notify(new Wrapped\Invoice(19)),
            'notification-secret' => fn () => $anonymous()->notify(new Wrapped\SecretInvoice(20)),
            'mailable' => fn () => Mail::to([['email' => 'a@example.com', 'name' => 'Ägidius'], ['email' => 'b@example.com']])
                ->cc('c@example.com')->bcc('d@example.com')->locale('de')->queue(Wrapped\Letter::full(5)),
            'mailable-bare' => fn () => Mail::to('a@example.com')->queue(new Wrapped\Letter(6)),
            'broadcast' => fn () => app(Broadcasting::class)->queue(new Wrapped\Score('Wisła', 3)),
            'broadcast-unique' => fn () => app(Broadcasting::class)->queue($unique()),
            'command' => fn () => Artisan::queue('interop:note', ['text' => 'zażółć', '--times' => 2, '--flag' => true]),
            'command-bare' => fn () => Artisan::queue('interop:note'),
            'command-line' => fn () => Artisan::queue('interop:note "a b" --times=3'),
            'string' => fn () => Queue::push('App\Jobs\Legacy@run', ['a' => 1, 'b' => [1.5, null]]),
            'string-fire' => fn () => Queue::push('App\Jobs\Legacy'),
        ];
    }

    /** Facts about the wrapper that a handler can get. */
    private function facts(array $payload, ?object $command, mixed $data): array
    {
        [$category, $facts] = match (true) {
            $command === null => ['string', $this->stringJob($payload['job'])],
            $command instanceof CallQueuedListener => $this->listener($command),
            $command instanceof SendQueuedNotifications => ['notification', $this->notification($command)],
            $command instanceof SendQueuedMailable => ['mailable', $this->mailable($command->mailable)],
            $command instanceof BroadcastEvent => ['broadcast', [
                'class' => $command->event::class,
                'socket' => $command->event->socket ?? null,
                'unique' => $command->uniqueId ?? null,
            ]],
            $command instanceof QueuedCommand => ['command', ['data' => $this->read($command, 'data')]],
        };

        return ['category' => $category, 'facts' => $facts];
    }

    private function stringJob(string $job): array
    {
        [$class, $method] = explode('@', $job) + [1 => 'fire'];

        return ['class' => $class, 'method' => $method];
    }

    private function listener(CallQueuedListener $command): array
    {
        if ($command->class === \Illuminate\Events\InvokeQueuedClosure::class) {
            return ['closure', []];
        }

        return ['listener', [
            'class' => $command->class,
            'method' => $command->method,
            'event' => is_object($first = array_values($command->data)[0] ?? null) ? $first::class : null,
            'arguments' => array_slice(array_values($command->data), 1),
        ]];
    }

    private function notification(SendQueuedNotifications $command): array
    {
        // In the form that arrives: models are identifiers.
        $copy = (fn () => $this->getSerializedPropertyValue($this->notifiables))->call($command);
        $ids = $copy instanceof ModelIdentifier ? (array) $copy->id : [];

        return [
            'class' => $command->notification::class,
            'channels' => $command->channels,
            'id' => $command->notification->id,
            'locale' => $command->notification->locale,
            'keys' => $ids,
            'routes' => $ids === [] ? $command->notifiables->first()->routes : null,
        ];
    }

    private function mailable(object $mailable): array
    {
        $facts = ['class' => $mailable::class];
        foreach (['to', 'cc', 'bcc', 'replyTo', 'from', 'subject', 'locale', 'mailer', 'view', 'textView', 'markdown', 'html',
            'theme', 'viewData', 'attachments', 'diskAttachments', 'tags', 'metadata', 'rawAttachments'] as $name) {
            $facts[$name] = property_exists($mailable, $name) ? $this->read($mailable, $name) : [];
        }

        return $facts;
    }

    private function read(object $object, string $name): mixed
    {
        return (new ReflectionProperty($object, $name))->getValue($object);
    }
}
