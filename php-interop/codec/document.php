<?php

/**
 * A live PHP value as the JSON document that stands for it. It walks the value, never the serialized text, so it
 * does not share a mistake with a reader of that text.
 *
 * `{"$ref": pointer}` stands for an object or a PHP reference that is open on the way from the root to this place; the
 * pointer names where on that way it was opened.
 */
final class Document
{
    /** @var array<string, string> what is open on the way here => JSON pointer */
    private array $open = [];

    private int $left;

    private function __construct(int $limit)
    {
        $this->left = $limit;
    }

    /**
     * The JSON text of `$value`. `serialize($value)` must have run just before: `C:` bodies are taken from that call.
     *
     * @throws LengthException when the document would have more than `$limit` values
     */
    public static function of(mixed $value, int $limit = PHP_INT_MAX): string
    {
        return (new self($limit))->value($value, '');
    }

    private function value(mixed $value, string $at): string
    {
        if ($this->left-- <= 0) {
            throw new LengthException('the document is too large');
        }

        return match (true) {
            $value === null => 'null',
            is_bool($value) => $value ? 'true' : 'false',
            is_int($value) => (string) $value,
            is_float($value) => self::float($value),
            is_string($value) => self::string($value),
            is_array($value) => $this->array($value, $at),
            default => $this->object($value, $at),
        };
    }

    private static function float(float $value): string
    {
        if (is_nan($value) || is_infinite($value)) {
            return '{"$float":"' . (is_nan($value) ? 'NAN' : ($value > 0 ? 'INF' : '-INF')) . '"}';
        }

        return json_encode($value, JSON_PRESERVE_ZERO_FRACTION | JSON_THROW_ON_ERROR);
    }

    private static function string(string $value): string
    {
        return preg_match('//u', $value) ? self::quote($value) : '{"$bytes":"' . base64_encode($value) . '"}';
    }

    private static function name(string $value): string
    {
        return preg_match('//u', $value) ? $value : '$bytes:' . base64_encode($value);
    }

    private static function quote(string $value): string
    {
        return json_encode($value, JSON_UNESCAPED_SLASHES | JSON_UNESCAPED_UNICODE | JSON_THROW_ON_ERROR);
    }

    private function array(array $value, string $at): string
    {
        $list = array_is_list($value);
        $out = [];
        foreach (array_keys($value) as $key) {
            $out[] = $this->element($value, $key, $list ? null : self::name((string) $key), $at);
        }

        return $list ? '[' . implode(',', $out) . ']' : '{' . implode(',', $out) . '}';
    }

    /** One element, with its name in front unless it sits in a list. */
    private function element(array $array, int|string $key, ?string $name, string $at): string
    {
        $at .= '/' . strtr($name ?? (string) $key, ['~' => '~0', '/' => '~1']);
        $prefix = $name === null ? '' : self::quote($name) . ':';
        $reference = is_array($array[$key]) ? ReflectionReference::fromArrayElement($array, $key)?->getId() : null;
        if ($reference === null) {
            return $prefix . $this->value($array[$key], $at);
        }

        return $prefix . $this->once('&' . $reference, $at, fn () => $this->value($array[$key], $at));
    }

    /** @param callable(): string $write */
    private function once(string $what, string $at, callable $write): string
    {
        if (isset($this->open[$what])) {
            return '{"$ref":' . self::quote($this->open[$what]) . '}';
        }
        $this->open[$what] = $at;
        try {
            return $write();
        } finally {
            unset($this->open[$what]);
        }
    }

    private function object(object $value, string $at): string
    {
        $class = get_class($value);
        if ($value instanceof UnitEnum) {
            return '{"$enum":' . self::quote($class) . ',"case":' . self::quote($value->name) . '}';
        }
        if ($value instanceof DateTimeInterface) {
            return '{"$date":' . self::quote($value->format('Y-m-d\TH:i:s.uP')) .
                ',"timezone":' . self::quote($value->getTimezone()->getName()) .
                ',"$class":' . self::quote($class) . '}';
        }
        if ($value instanceof Serializable && !method_exists($value, '__serialize')) {
            return '{"$class":' . self::quote($class) .
                ',"$custom":' . self::string(Bodies::$of[spl_object_id($value)]) . '}';
        }

        return $this->once('#' . spl_object_id($value), $at, fn () => $this->properties($class, $value, $at));
    }

    private function properties(string $class, object $value, string $at): string
    {
        $pairs = self::pairs($value);
        if ($value instanceof __PHP_Incomplete_Class) {
            $class = $pairs['__PHP_Incomplete_Class_Name'];
            unset($pairs['__PHP_Incomplete_Class_Name']);
        }
        $out = [];
        $model = $value instanceof Illuminate\Contracts\Database\ModelIdentifier;
        if (!$model) {
            $out[] = '"$class":' . self::quote($class);
        }
        foreach (self::names($class, $pairs) as $key => $name) {
            if ($model && $name === 'collectionClass' && $pairs[$key] === null) {
                continue;
            }
            $out[] = $this->element($pairs, $key, self::name($model && $name === 'class' ? '$model' : $name), $at);
        }

        return '{' . implode(',', $out) . '}';
    }

    /** What serialize() writes for the object: mangled names, in its order. */
    private static function pairs(object $value): array
    {
        if ($value instanceof __PHP_Incomplete_Class) {
            return (array) $value;
        }
        if (method_exists($value, '__serialize')) {
            return $value->__serialize();
        }
        $all = (array) $value;
        if (!method_exists($value, '__sleep')) {
            return $all;
        }
        $pairs = [];
        foreach ($value->__sleep() as $name) {
            foreach ([$name, "\0*\0$name", "\0" . get_class($value) . "\0$name"] as $key) {
                if (array_key_exists($key, $all)) {
                    $pairs[$key] = &$all[$key];
                }
            }
        }

        return $pairs;
    }

    /** @return array<int|string, string> key => name in the document */
    private static function names(string $class, array $pairs): array
    {
        $names = [];
        $owners = [];
        foreach (array_keys($pairs) as $key) {
            $text = (string) $key;
            $end = $text !== '' && $text[0] === "\0" ? strpos($text, "\0", 1) : false;
            $names[$key] = $end === false ? $text : substr($text, $end + 1);
            $owners[$key] = $end === false ? '*' : substr($text, 1, $end - 1);
        }
        $uses = array_count_values($names);
        foreach ($names as $key => $name) {
            if ($uses[$name] > 1 && $owners[$key] !== '*' && $owners[$key] !== $class) {
                $names[$key] = "$owners[$key]::$name";
            }
        }

        return $names;
    }
}
