<?php

namespace App;

use DateTimeInterface;
use Illuminate\Broadcasting\BroadcastEvent;
use Illuminate\Contracts\Database\ModelIdentifier;
use Illuminate\Contracts\Queue\Job as QueueJob;
use Illuminate\Contracts\Queue\QueueableCollection;
use Illuminate\Contracts\Queue\QueueableEntity;
use Illuminate\Events\CallQueuedListener;
use Illuminate\Foundation\Console\QueuedCommand;
use Illuminate\Mail\SendQueuedMailable;
use Illuminate\Notifications\SendQueuedNotifications;
use Illuminate\Queue\CallQueuedClosure;
use Illuminate\Queue\SerializesModels;
use ReflectionClass;
use ReflectionProperty;
use ReflectionReference;
use Serializable;
use stdClass;
use UnitEnum;

/**
 * PHP's own view of a queued object, as the `data` of a job document.
 *
 * It comes from the live object and not from its serialized bytes, so that it can
 * verify a reader of those bytes. It is the state after a worker
 * unserialized the job: models are their identifiers, and properties that the trait
 * SerializesModels loses (private ones of parent classes,
 * dynamic ones) are not there.
 *
 * `defaults` lists, as JSON pointers into `document`, the properties that equal
 * the default their class declares; from Laravel 9.4 on the bytes do not have
 * them, so a reader that only has the bytes cannot know them.
 */
final class Document
{
    /** Properties that belong to the framework's traits, by name, on the object a job is about. */
    public const BOOKKEEPING = [
        'connection', 'queue', 'delay', 'chained', 'chainConnection', 'chainQueue', 'chainCatchCallbacks',
        'middleware', 'afterCommit', 'job', 'batchId', 'messageGroup', 'deduplicator', 'debounceOwner',
        'uniqueLockOwner', 'group', 'fakeBatch',
    ];

    /** @var list<string> JSON pointers into the document */
    private array $defaults = [];

    /** @var array<string, string> identity of a value that is being described => its pointer */
    private array $open = [];

    /**
     * The document of a queued command, or of the data of a string job.
     *
     * @return array{document: mixed, defaults: list<string>, meta: stdClass}
     */
    public static function of(mixed $command): array
    {
        $self = new self;

        if (! is_object($command)) {
            // The data of a string job travels as JSON, where 2.0 is written 2.
            $command = json_decode(json_encode($command, JSON_THROW_ON_ERROR), true, 512, JSON_THROW_ON_ERROR);

            return ['document' => $self->value($command, ''), 'defaults' => [], 'meta' => new stdClass];
        }

        // The queue serializes a clone. This matters if the job refers to itself.
        $command = clone $command;
        $outer = $self->properties($command);

        $inner = match (true) {
            $command instanceof CallQueuedListener => array_values($outer['data'])[0] ?? null,
            $command instanceof SendQueuedNotifications => $command->notification,
            $command instanceof SendQueuedMailable => $command->mailable,
            $command instanceof BroadcastEvent => $command->event,
            $command instanceof QueuedCommand => array_values($outer['data'])[1] ?? [],
            $command instanceof CallQueuedClosure => null,
            default => $command,
        };

        $meta = $self->bookkeeping($command);
        if (is_object($inner)) {
            $meta += $self->bookkeeping($inner);
            $document = $self->top($inner);
            if ($command instanceof SendQueuedNotifications) {
                $document->notifiables = $self->value($self->identify($command->notifiables), '/notifiables');
            }
        } else {
            $document = $self->value($inner, '');
        }

        return ['document' => $document, 'defaults' => $self->defaults, 'meta' => (object) $meta];
    }

    private function bookkeeping(object $object): array
    {
        $found = [];
        foreach ($this->properties($object) as $name => $value) {
            $empty = $value === null || $value === [] || $value === '' || $value instanceof QueueJob;
            if (in_array($name, self::BOOKKEEPING, true) && ! $empty) {
                $found[$name] = (new self)->value($value, '');
            }
        }

        return $found;
    }

    /** The object a job is about: without `$class` and without bookkeeping. */
    private function top(object $object): stdClass
    {
        $this->open['o'.spl_object_id($object)] = '/data';
        $document = new stdClass;
        foreach ($this->properties($object, '', self::BOOKKEEPING) as $name => $value) {
            if (! in_array($name, self::BOOKKEEPING, true)) {
                $document->{$name} = $this->value($value, self::step('', $name), $this->reference($object, $name));
            }
        }

        return $document;
    }

    private function value(mixed $value, string $pointer, ?string $reference = null): mixed
    {
        return match (true) {
            $value === null, is_bool($value), is_int($value) => $value,
            // While a job runs, this property is the queue's own object; in the bytes it is null.
            $value instanceof QueueJob => null,
            is_float($value) => self::float($value),
            is_string($value) => self::string($value),
            is_array($value) => $this->once($reference, $pointer, fn () => $this->array($value, $pointer)),
            $value instanceof UnitEnum => ['$enum' => $value::class, 'case' => $value->name],
            $value instanceof DateTimeInterface => [
                // `x`: years beyond 9999 get a plus sign, as ISO 8601 wants it
                '$date' => $value->format('x-m-d\TH:i:s.uP'),
                'timezone' => $value->getTimezone()->getName(),
                '$class' => $value::class,
            ],
            $value instanceof ModelIdentifier => $this->model($value),
            default => $this->once('o'.spl_object_id($value), $pointer, fn () => $this->object($value, $pointer)),
        };
    }

    /** Describes a value, unless it is one of those around it. */
    private function once(?string $identity, string $pointer, callable $describe): mixed
    {
        if ($identity === null) {
            return $describe();
        }
        if (isset($this->open[$identity])) {
            return ['$ref' => $this->open[$identity]];
        }
        $this->open[$identity] = '/data'.$pointer;
        try {
            return $describe();
        } finally {
            unset($this->open[$identity]);
        }
    }

    private static function float(float $value): mixed
    {
        return match (true) {
            is_nan($value) => ['$float' => 'NAN'],
            is_infinite($value) => ['$float' => $value > 0 ? 'INF' : '-INF'],
            default => $value,
        };
    }

    private static function string(string $value): mixed
    {
        return mb_check_encoding($value, 'UTF-8') ? $value : ['$bytes' => base64_encode($value)];
    }

    private function array(array $array, string $pointer): mixed
    {
        $described = [];
        foreach ($array as $key => $value) {
            $id = ReflectionReference::fromArrayElement($array, $key)?->getId();
            $described[$key] = $this->value($value, self::step($pointer, $key), $id === null ? null : 'r'.$id);
        }

        return array_is_list($array) ? $described : (object) $described;
    }

    private function model(ModelIdentifier $model): array
    {
        $described = [
            '$model' => $model->class,
            'id' => $model->id,
            'relations' => array_values($model->relations),
            'connection' => $model->connection,
        ];
        if (isset($model->collectionClass)) {
            $described['collectionClass'] = $model->collectionClass;
        }

        return $described;
    }

    private function object(object $object, string $pointer): stdClass
    {
        $described = new stdClass;
        $described->{'$class'} = $object::class;

        if ($object instanceof Serializable && ! method_exists($object, '__serialize')) {
            $described->{'$custom'} = self::string($object->serialize());

            return $described;
        }
        foreach ($this->properties($object, $pointer) as $name => $value) {
            $described->{$name} = $this->value($value, self::step($pointer, $name), $this->reference($object, $name));
        }

        return $described;
    }

    /**
     * Names as a document has them => values as serialization takes them.
     *
     * @param  string|null  $pointer  where the object stands, to note defaults; null notes none
     * @param  list<string>  $ignore  names whose defaults are of no interest
     */
    private function properties(object $object, ?string $pointer = null, array $ignore = []): array
    {
        if (in_array(SerializesModels::class, class_uses_recursive($object), true)) {
            return $this->modelProperties($object, $pointer, $ignore);
        }
        if (method_exists($object, '__serialize')) {
            return self::unmangle($object->__serialize(), $object);
        }
        $all = (array) $object;
        if (method_exists($object, '__sleep')) {
            $chosen = [];
            foreach ($object->__sleep() as $name) {
                foreach ([$name, "\0".$object::class."\0".$name, "\0*\0".$name] as $mangled) {
                    if (array_key_exists($mangled, $all)) {
                        $chosen[$mangled] = $all[$mangled];
                        break;
                    }
                }
            }
            $all = $chosen;
        }

        return self::unmangle($all, $object);
    }

    /** The properties that SerializesModels sees: those that reflection of the object's own class returns. */
    private function modelProperties(object $object, ?string $pointer, array $ignore): array
    {
        $class = new ReflectionClass($object);
        $bare = self::hasAttribute($class);
        $found = [];
        foreach ($class->getProperties() as $property) {
            if ($property->isStatic() || ! $property->isInitialized($object)
                || (method_exists($property, 'isVirtual') && $property->isVirtual())) {
                continue;
            }
            $value = $property->getValue($object);
            if ($pointer !== null && ! in_array($property->name, $ignore, true)
                && $property->hasDefaultValue() && $value === $property->getDefaultValue()) {
                $this->defaults[] = self::step($pointer, $property->name);
            }
            $found[$property->name] = $this->identify($value, $bare || self::hasAttribute($property));
        }

        return $found;
    }

    private function identify(mixed $value, bool $withoutRelations = false): mixed
    {
        if (! $value instanceof QueueableEntity && ! $value instanceof QueueableCollection) {
            return $value;
        }
        $identifier = new ModelIdentifier(
            $value instanceof QueueableCollection ? $value->getQueueableClass() : $value::class,
            $value instanceof QueueableCollection ? $value->getQueueableIds() : $value->getQueueableId(),
            $withoutRelations ? [] : $value->getQueueableRelations(),
            $value->getQueueableConnection()
        );
        if ($value instanceof QueueableCollection && property_exists($identifier, 'collectionClass')
            && $value::class !== \Illuminate\Database\Eloquent\Collection::class) {
            $identifier->collectionClass = $value::class;
        }

        return $identifier;
    }

    /** @param  ReflectionClass<object>|ReflectionProperty  $where */
    private static function hasAttribute(ReflectionClass|ReflectionProperty $where): bool
    {
        $attribute = \Illuminate\Queue\Attributes\WithoutRelations::class;

        return class_exists($attribute) && $where->getAttributes($attribute) !== [];
    }

    /** Turns names with visibility marks into plain ones, if necessary prefixed with the class. */
    private static function unmangle(array $properties, object $object): array
    {
        $plain = [];
        foreach ($properties as $mangled => $value) {
            $parts = explode("\0", (string) $mangled);
            $name = end($parts);
            $class = count($parts) === 3 ? $parts[1] : null;
            if ($class !== null && $class !== '*' && $class !== $object::class
                && (array_key_exists($name, $properties)
                    || array_key_exists("\0*\0".$name, $properties)
                    || array_key_exists("\0".$object::class."\0".$name, $properties))) {
                $name = $class.'::'.$name;
            }
            $plain[$name] = $value;
        }

        return $plain;
    }

    /** Identity of the PHP reference that a property is, if it is one and serialization keeps it. */
    private function reference(object $object, string|int $name): ?string
    {
        if (method_exists($object, '__serialize')) {
            return null;
        }
        $all = (array) $object;
        foreach ([$name, "\0".$object::class."\0".$name, "\0*\0".$name] as $mangled) {
            if (array_key_exists($mangled, $all)) {
                $id = ReflectionReference::fromArrayElement($all, $mangled)?->getId();

                return $id === null ? null : 'r'.$id;
            }
        }

        return null;
    }

    private static function step(string $pointer, string|int $key): string
    {
        return $pointer.'/'.strtr((string) $key, ['~' => '~0', '/' => '~1']);
    }

    /** One line of JSON: floats keep their fraction, text stays readable, big integers are exact. */
    public static function json(mixed $value): string
    {
        return json_encode(
            $value,
            JSON_THROW_ON_ERROR | JSON_PRESERVE_ZERO_FRACTION | JSON_UNESCAPED_SLASHES | JSON_UNESCAPED_UNICODE,
            4096
        );
    }
}
