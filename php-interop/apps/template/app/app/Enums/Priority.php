<?php

namespace App\Enums;

enum Priority: string
{
    case High = 'high';
    case Low = 'low';
}
